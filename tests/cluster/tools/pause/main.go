// Command pause holds a pod's namespaces open: it reaps what is orphaned there and ends when told.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	events := make(chan os.Signal, 1)
	signal.Notify(events, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	for event := range events {
		if event != syscall.SIGCHLD {
			return
		}
		for pid := 1; pid > 0; {
			pid, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		}
	}
}
