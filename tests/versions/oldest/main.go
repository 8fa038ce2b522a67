// Kubeplane of the oldest Kubernetes that Skysail supports, for `make test-versions`. As that of `skysail build`, except
// for kubectl, which has no kuberc yet, and without etcd: the etcd of that time takes no socket with a path.
package main

import (
	"fmt"
	"os"
	_ "time/tzdata" // CronJobs with a time zone, on machines without zone files

	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

var components = map[string]func(){
	"kube-apiserver":          server(apiserver.NewAPIServerCommand),
	"kube-controller-manager": server(controllermanager.NewControllerManagerCommand),
	"kube-scheduler":          server(func() *cobra.Command { return scheduler.NewSchedulerCommand() }),
	"kubectl":                 runKubectl,
}

func main() {
	if len(os.Args) < 2 || components[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: kubeplane {kube-apiserver|kube-controller-manager|kube-scheduler|kubectl} [flags]")
		os.Exit(2)
	}
	run := components[os.Args[1]]
	os.Args = os.Args[1:] // the components look for their name and flags here
	run()
}

func server(command func() *cobra.Command) func() {
	return func() { os.Exit(cli.Run(command())) }
}

func runKubectl() {
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
}
