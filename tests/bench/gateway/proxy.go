package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"time"

	"github.com/tidwall/gjson"
)

// proxy is the yardstick: Go's ReverseProxy, tuned as well as we know, choosing by the model's name.
// It has no queue, no keys, no log and no figures: everything that the gateway does beside.
func proxy(arguments []string) error {
	flags := flag.NewFlagSet("proxy", flag.ExitOnError)
	address := flags.String("addr", "127.0.0.1:0", "address to listen on")
	upstream := flags.String("upstream", "", "URL of the engine")
	flags.Parse(arguments)
	target, err := url.Parse(*upstream)
	if err != nil {
		return err
	}
	models := map[string]*url.URL{"bench": target}
	pass := &httputil.ReverseProxy{
		Transport: &http.Transport{
			MaxIdleConnsPerHost: 4096, IdleConnTimeout: 90 * time.Second, DisableCompression: true,
		},
		FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(models["bench"])
			r.SetXForwarded()
		},
	}
	chat := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		model := gjson.GetBytes(body, "model").String()
		if models[model] == nil {
			http.Error(w, "no model "+model, http.StatusNotFound)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		r.Header.Set("Content-Length", strconv.Itoa(len(body)))
		pass.ServeHTTP(w, r)
	}
	http.HandleFunc("POST /v1/chat/completions", chat)
	http.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	return http.ListenAndServe(*address, nil)
}
