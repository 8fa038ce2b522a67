// promcheck checks alerting rules and expressions with Prometheus' own parsers: rule groups on stdin, or with the
// argument `expressions` one PromQL expression per line. It prints the metrics that they name, or fails with the errors.
package main

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sort"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

func main() {
	metrics := map[string]bool{}
	var problems []error
	if len(os.Args) > 1 && os.Args[1] == "expressions" {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			problems = append(problems, collect(lines.Text(), metrics)...)
		}
	} else {
		content, err := io.ReadAll(os.Stdin)
		if err != nil {
			fail([]error{err})
		}
		groups, found := rulefmt.Parse(content, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.Default())
		problems = found
		if groups != nil {
			for _, group := range groups.Groups {
				for _, rule := range group.Rules {
					problems = append(problems, collect(rule.Expr, metrics)...)
				}
			}
		}
	}
	if len(problems) > 0 {
		fail(problems)
	}
	names := make([]string, 0, len(metrics))
	for name := range metrics {
		names = append(names, name)
	}
	sort.Strings(names)
	fmt.Println(strings.Join(names, "\n"))
}

func collect(text string, metrics map[string]bool) []error {
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		return []error{fmt.Errorf("%s: %w", text, err)}
	}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			metrics[selector.Name] = true
		}
		return nil
	})
	return nil
}

func fail(problems []error) {
	for _, problem := range problems {
		fmt.Fprintln(os.Stderr, problem)
	}
	os.Exit(1)
}
