package main

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// A chunk as llama-server writes it; the clock (ns) right before the write stands in its content.
const chunkHead = `data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":"`
const chunkTail = `"}}],"created":1767225600,"id":"chatcmpl-0123456789abcdef0123456789abcdef",` +
	`"model":"bench","system_fingerprint":"b11669","object":"chat.completion.chunk"}` + "\n\n"
const lastChunk = `data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"created":1767225600,` +
	`"id":"chatcmpl-0123456789abcdef0123456789abcdef","model":"bench","object":"chat.completion.chunk",` +
	`"timings":{"prompt_n":11,"predicted_n":%d}}` + "\n\ndata: [DONE]\n\n"

// engine answers chat requests: max_tokens chunks, one every gap_us microseconds (0: as they go).
func engine(arguments []string) error {
	flags := flag.NewFlagSet("engine", flag.ExitOnError)
	address := flags.String("addr", "127.0.0.1:0", "address to listen on")
	flags.Parse(arguments)
	text := strings.Repeat("lorem ipsum dolor sit amet ", 26)
	whole := []byte(`{"choices":[{"finish_reason":"stop","index":0,"message":{"role":"assistant","content":"` + text +
		`"}}],"created":1767225600,"model":"bench","object":"chat.completion",` +
		`"usage":{"completion_tokens":16,"prompt_tokens":11,"total_tokens":27},"id":"chatcmpl-0123456789abcdef"}`)
	answer := func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		if len(body) > 64<<10 {
			// Only its end: a large body is there to be carried, not to be read twice.
			body = append([]byte("{"), body[len(body)-256:]...)
			body = body[strings.Index(string(body), `"max_tokens"`)-1:]
			body[0] = '{'
		}
		if !gjson.GetBytes(body, "stream").Bool() {
			w.Header().Set("Content-Type", "application/json")
			w.Write(whole)
			return
		}
		count := int(gjson.GetBytes(body, "max_tokens").Int())
		gap := time.Duration(gjson.GetBytes(body, "gap_us").Int()) * time.Microsecond
		stream(w, count, gap)
	}
	http.HandleFunc("POST /v1/chat/completions", answer)
	http.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	return http.ListenAndServe(*address, nil)
}

func stream(w http.ResponseWriter, count int, gap time.Duration) {
	w.Header().Set("Content-Type", "text/event-stream")
	flush := w.(http.Flusher)
	next := time.Now()
	var buffer []byte
	for range count {
		if gap > 0 {
			next = next.Add(gap)
			time.Sleep(time.Until(next))
		}
		buffer = append(buffer[:0], chunkHead...)
		buffer = strconv.AppendInt(buffer, time.Now().UnixNano(), 10)
		buffer = append(buffer, chunkTail...)
		if _, err := w.Write(buffer); err != nil {
			return
		}
		flush.Flush()
	}
	fmt.Fprintf(w, lastChunk, count)
}
