package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A cell is one kind of load.
type cell struct {
	clients, tokens, gapUS, bodyBytes int
	stream                            bool
}

var cells = map[string]cell{
	"json":  {clients: 32, tokens: 16},
	"sse":   {clients: 16, tokens: 100, stream: true},
	"paced": {clients: 200, tokens: 100, gapUS: 20_000, stream: true},
	"quiet": {clients: 4, tokens: 100, gapUS: 20_000, stream: true},
	"many":  {clients: 1000, tokens: 40, gapUS: 100_000, stream: true},
	"body":  {clients: 2, tokens: 16, bodyBytes: 3 << 20},
}

type target struct {
	name, url string
	pid       int
}

// A sample is what one round showed of one target.
type sample struct {
	Target    string  `json:"target"`
	Cell      string  `json:"cell"`
	Round     int     `json:"round"`
	Requests  int     `json:"requests"`
	Tokens    int     `json:"tokens"`
	Errors    int     `json:"errors"`
	Seconds   float64 `json:"seconds"`
	CPU       float64 `json:"cpu"`
	FirstP50  float64 `json:"first_p50_ms"`
	DelayP50  float64 `json:"delay_p50_ms"`
	DelayP99  float64 `json:"delay_p99_ms"`
	MemoryMiB float64 `json:"memory_mib"`
}

type tally struct {
	requests, tokens, errors int
	firsts, delays           []time.Duration
}

// load asks every target in turn, round after round, and prints a sample a line.
func load(arguments []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	names := flags.String("targets", "", "name=url@pid,…")
	kind := flags.String("cell", "json", "kind of load")
	rounds := flags.Int("rounds", 5, "rounds")
	span := flags.Duration("span", 2*time.Second, "length of a round")
	key := flags.String("key", "", "API key")
	flags.Parse(arguments)
	var targets []target
	for _, text := range strings.Split(*names, ",") {
		name, rest, _ := strings.Cut(text, "=")
		url, pid, _ := strings.Cut(rest, "@")
		number, _ := strconv.Atoi(pid)
		targets = append(targets, target{name, url, number})
	}
	for _, t := range targets {
		measure(t, *kind, *span/4, *key)
	}
	for round := range *rounds {
		for i := range targets {
			s := measure(targets[(i+round)%len(targets)], *kind, *span, *key)
			s.Round = round
			line, err := json.Marshal(s)
			if err != nil {
				return err
			}
			fmt.Println(string(line))
		}
	}
	return nil
}

func measure(t target, kind string, span time.Duration, key string) sample {
	c := cells[kind]
	tallies := make([]tally, c.clients)
	client := &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: c.clients, MaxConnsPerHost: c.clients, DisableCompression: true,
	}}
	defer client.CloseIdleConnections()
	body := request(c)
	before, start := cpu(t.pid), time.Now()
	var group sync.WaitGroup
	for i := range tallies {
		group.Add(1)
		go func() {
			defer group.Done()
			if c.gapUS > 0 {
				// Streams begin and end all the time, not all at once.
				time.Sleep(time.Duration(i*c.gapUS*c.tokens/c.clients) * time.Microsecond)
			}
			for time.Since(start) < span {
				ask(client, t.url, key, body, &tallies[i])
			}
		}()
	}
	peak, done := make(chan float64), make(chan bool)
	go watchMemory(t.pid, done, peak)
	group.Wait()
	close(done)
	seconds, used := time.Since(start).Seconds(), cpu(t.pid)-before
	sum := tally{}
	for _, one := range tallies {
		sum.requests += one.requests
		sum.tokens += one.tokens
		sum.errors += one.errors
		sum.firsts = append(sum.firsts, one.firsts...)
		sum.delays = append(sum.delays, one.delays...)
	}
	return sample{
		Target: t.name, Cell: kind, Requests: sum.requests, Tokens: sum.tokens, Errors: sum.errors,
		Seconds: seconds, CPU: used, FirstP50: quantile(sum.firsts, 0.5),
		DelayP50: quantile(sum.delays, 0.5), DelayP99: quantile(sum.delays, 0.99), MemoryMiB: <-peak,
	}
}

// request has the model's name after the messages, where OpenAI's own SDK puts it.
func request(c cell) []byte {
	content := "Say hello." + strings.Repeat("QUJD", c.bodyBytes/4)
	return fmt.Appendf(nil,
		`{"messages":[{"role":"user","content":%q}],"model":"bench","max_tokens":%d,"stream":%v,"gap_us":%d}`,
		content, c.tokens, c.stream, c.gapUS)
}

var mark = []byte(`"content":"`)

func ask(client *http.Client, url, key string, body []byte, sum *tally) {
	asked := time.Now()
	r, err := http.NewRequest("POST", url+"/v1/chat/completions", bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+key)
	answer, err := client.Do(r)
	if err != nil {
		sum.errors++
		return
	}
	defer answer.Body.Close()
	if answer.StatusCode != 200 {
		sum.errors++
		io.Copy(io.Discard, answer.Body)
		return
	}
	lines := bufio.NewReaderSize(answer.Body, 64<<10)
	isDone, isFirst := !strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream"), true
	for {
		line, err := lines.ReadSlice('\n')
		if at := bytes.Index(line, mark); at >= 0 && len(line) > at+len(mark)+19 {
			if sent, wrong := strconv.ParseInt(string(line[at+len(mark):at+len(mark)+19]), 10, 64); wrong == nil {
				sum.tokens++
				sum.delays = append(sum.delays, time.Duration(time.Now().UnixNano()-sent))
				if isFirst {
					isFirst = false
					sum.firsts = append(sum.firsts, time.Since(asked))
				}
			}
		}
		isDone = isDone || bytes.HasPrefix(line, []byte("data: [DONE]"))
		if err == io.EOF {
			break
		}
		if err != nil {
			sum.errors++
			return
		}
	}
	if !isDone {
		sum.errors++
	}
	sum.requests++
}

func quantile(values []time.Duration, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return float64(values[int(q*float64(len(values)-1))].Microseconds()) / 1000
}

// cpu is the user and system time of a process in seconds.
func cpu(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, _ := strconv.ParseFloat(fields[11], 64)
	system, _ := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100
}

// watchMemory sends the most memory that a process had until done is closed.
func watchMemory(pid int, done chan bool, peak chan float64) {
	most := memory(pid)
	for {
		select {
		case <-done:
			peak <- max(most, memory(pid))
			return
		case <-time.After(time.Second):
			most = max(most, memory(pid))
		}
	}
}

// memory is the proportional set size of a process in MiB.
func memory(pid int) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	for _, line := range strings.Split(string(text), "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "Pss:" {
			size, _ := strconv.ParseFloat(fields[1], 64)
			return size / 1024
		}
	}
	return 0
}
