// Three small programs to measure the gateway with: an engine, a reference proxy and a load.
package main

import (
	"fmt"
	"os"
)

func main() {
	programs := map[string]func([]string) error{"engine": engine, "proxy": proxy, "load": load}
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: bench engine|proxy|load [flags]")
		os.Exit(2)
	}
	if err := programs[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
