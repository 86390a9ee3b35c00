// Command kube is every Kubernetes program of the test cluster in one binary: linking them together
// costs one link and one copy of the libraries on disk instead of six.
//
// The first argument picks the program; the rest are its own flags.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"

	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	// The programs' own main packages register these; without them flags such as
	// --logging-format or the cloud-less volume plugins are missing.
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

func programs() map[string]func() *cobra.Command {
	return map[string]func() *cobra.Command{
		"kube-apiserver":          func() *cobra.Command { return apiserver.NewAPIServerCommand() },
		"kube-controller-manager": func() *cobra.Command { return controllermanager.NewControllerManagerCommand() },
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
		"kube-proxy":              func() *cobra.Command { return proxy.NewProxyCommand() },
		"kubelet": func() *cobra.Command {
			return kubelet.NewKubeletCommand(context.Background())
		},
		"kubectl": func() *cobra.Command {
			return kubectl.NewDefaultKubectlCommand()
		},
	}
}

func main() {
	known := programs()
	if len(os.Args) < 2 || known[os.Args[1]] == nil {
		names := make([]string, 0, len(known))
		for name := range known {
			names = append(names, name)
		}
		sort.Strings(names)
		fmt.Fprintf(os.Stderr, "usage: kube PROGRAM [flags], PROGRAM one of: %s\n", strings.Join(names, ", "))
		os.Exit(2)
	}
	name := os.Args[1]
	os.Args = append([]string{name}, os.Args[2:]...)
	if name == "kubectl" {
		// kubectl prints its own errors; cli.Run would print them a second time.
		if err := cli.RunNoErrOutput(known[name]()); err != nil {
			kubectlutil.CheckErr(err)
		}
		return
	}
	os.Exit(cli.Run(known[name]()))
}
