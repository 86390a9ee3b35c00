{{/* Labels of one program: call with (dict "root" $ "program" "agent"). */}}
{{- define "berth.labels" -}}
{{ include "berth.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "berth.selector" -}}
app.kubernetes.io/name: berth
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .program }}
{{- end }}

{{/* The image of a program: its own where it has one. */}}
{{- define "berth.image" -}}
{{- $own := (get .root.Values .program).image | default dict -}}
{{- $image := .root.Values.image -}}
{{ $own.repository | default $image.repository }}:{{ $own.tag | default $image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* What every program's pod has. */}}
{{- define "berth.podMeta" -}}
labels:
  {{- include "berth.labels" . | nindent 2 }}
annotations:
  # Programs read their settings at start.
  berth.dev/settings-checksum: {{ include "berth.settings" .root | sha256sum | trunc 16 | quote }}
{{- end }}

{{- define "berth.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{/* The settings of the release as BERTH_ variables. */}}
{{- define "berth.settings" -}}
{{- $images := list -}}
{{- range $runtime, $hardware := .Values.runnerImages -}}
{{- range $kind, $image := $hardware -}}
{{- if $image -}}{{- $images = append $images (printf "%s/%s=%s" $runtime $kind $image) -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $settings := dict "BERTH_RUNNER_IMAGES" (join "," $images) "BERTH_RUNTIMES" (join "," .Values.runtimes) -}}
{{- $_ := set $settings "BERTH_IMAGE_OPERATOR" (include "berth.image" (dict "root" . "program" "controller")) -}}
{{- $_ := set $settings "BERTH_STORE_VOLUME" (ternary "csi" "hostPath" .Values.agent.csi.enabled) -}}
{{- range $name, $value := .Values.settings -}}
{{- $_ := set $settings (printf "BERTH_%s" $name) (toString $value) -}}
{{- end -}}
{{- range $name, $value := $settings }}
{{ $name }}: {{ $value | quote }}
{{- end }}
{{- end }}

{{/* A setting's value in effect: call with (dict "root" $ "name" "HEALTH_PORT" "default" "8081"). */}}
{{- define "berth.setting" -}}
{{- get .root.Values.settings .name | default .default -}}
{{- end }}

{{- define "berth.env" -}}
envFrom:
  - configMapRef:
      name: berth-settings
env:
  - name: BERTH_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
  - name: BERTH_POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  {{- if .root.Values.caConfigMap }}
  - name: SSL_CERT_FILE
    value: /etc/berth/ca/ca.crt
  {{- end }}
  {{- range $name, $value := .root.Values.extraEnv }}
  - name: {{ $name }}
    value: {{ $value | quote }}
  {{- end }}
{{- end }}

{{- define "berth.mounts" -}}
- name: tmp
  mountPath: /tmp
{{- if .Values.caConfigMap }}
- name: ca
  mountPath: /etc/berth/ca
  readOnly: true
{{- end }}
{{- end }}

{{- define "berth.volumes" -}}
- name: tmp
  emptyDir: {sizeLimit: {{ .tmp | default "1Gi" }}}
{{- if .Values.caConfigMap }}
- name: ca
  configMap:
    name: {{ .Values.caConfigMap }}
{{- end }}
{{- end }}

{{/* Pods that need nothing of the node. */}}
{{- define "berth.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "berth.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "berth.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
