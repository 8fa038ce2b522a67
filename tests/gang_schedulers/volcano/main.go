// Volcano's own scheduler, or its controller of queues, without which no queue is open: what a test of gangs needs.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
	componentbase "k8s.io/component-base/config/options"
	"k8s.io/klog/v2"

	controllers "volcano.sh/volcano/cmd/controller-manager/app"
	controlleroptions "volcano.sh/volcano/cmd/controller-manager/app/options"
	scheduler "volcano.sh/volcano/cmd/scheduler/app"
	scheduleroptions "volcano.sh/volcano/cmd/scheduler/app/options"
	"volcano.sh/volcano/pkg/util"

	_ "volcano.sh/volcano/pkg/controllers/queue"
	_ "volcano.sh/volcano/pkg/scheduler/actions"
	_ "volcano.sh/volcano/pkg/scheduler/plugins"
)

func main() {
	programs := map[string]func() error{"scheduler": schedule, "queues": keepQueues}
	run, known := programs[os.Args[1]]
	if !known {
		fmt.Fprintln(os.Stderr, "Give scheduler or queues, and then its flags.")
		os.Exit(2)
	}
	os.Args = append(os.Args[:1], os.Args[2:]...)
	klog.InitFlags(nil)
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func schedule() error {
	options := scheduleroptions.NewServerOption()
	options.AddFlags(pflag.CommandLine)
	util.LeaderElectionDefault(&options.LeaderElection)
	options.LeaderElection.ResourceName = util.GenerateComponentName(options.SchedulerNames)
	componentbase.BindLeaderElectionFlags(&options.LeaderElection, pflag.CommandLine)
	options.RegisterOptions()
	cliflag.InitFlags()
	if err := options.CheckOptionOrDie(); err != nil {
		return err
	}
	return scheduler.Run(options)
}

func keepQueues() error {
	options := controlleroptions.NewServerOption()
	options.AddFlags(pflag.CommandLine, []string{"queue-controller"})
	util.LeaderElectionDefault(&options.LeaderElection)
	options.LeaderElection.ResourceName = "queues"
	componentbase.BindLeaderElectionFlags(&options.LeaderElection, pflag.CommandLine)
	cliflag.InitFlags()
	if err := options.CheckOptionOrDie(); err != nil {
		return err
	}
	return controllers.Run(options)
}
