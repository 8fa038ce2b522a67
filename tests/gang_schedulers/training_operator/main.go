// Kubeflow's own controller of PyTorchJobs in one process, without its webhooks: what a test of offloaded gangs needs.
package main

import (
	"flag"
	"os"

	trainingv1 "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/controller.v1/pytorch"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseDevMode(false)))
	if err := run(); err != nil {
		ctrl.Log.Error(err, "the training operator has ended")
		os.Exit(1)
	}
}

func run() error {
	ctx := ctrl.SetupSignalHandler()
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(trainingv1.AddToScheme(scheme))
	config.Config.PyTorchInitContainerImage = config.PyTorchInitContainerImageDefault
	config.Config.PyTorchInitContainerTemplateFile = config.PyTorchInitContainerTemplateFileDefault
	config.Config.PyTorchInitContainerMaxTries = config.PyTorchInitContainerMaxTriesDefault
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		return err
	}
	reconciler := pytorch.NewReconciler(mgr, common.GenNonGangSchedulerSetupFunc())
	if err := reconciler.SetupWithManager(mgr, 1); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
