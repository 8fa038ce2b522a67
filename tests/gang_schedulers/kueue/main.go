// Kueue's own queues, quotas and scheduler in one process, without its webhooks: what a test of gang scheduling needs.
package main

import (
	"flag"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	config "sigs.k8s.io/kueue/apis/config/v1beta2"
	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	qcache "sigs.k8s.io/kueue/pkg/cache/queue"
	schdcache "sigs.k8s.io/kueue/pkg/cache/scheduler"
	"sigs.k8s.io/kueue/pkg/constants"
	"sigs.k8s.io/kueue/pkg/controller/core"
	"sigs.k8s.io/kueue/pkg/controller/core/indexer"
	"sigs.k8s.io/kueue/pkg/scheduler"
	preemption "sigs.k8s.io/kueue/pkg/scheduler/preemption/expectations"
)

func main() {
	flag.Parse()
	ctrl.SetLogger(zap.New(zap.UseDevMode(false)))
	if err := run(); err != nil {
		ctrl.Log.Error(err, "Kueue has ended")
		os.Exit(1)
	}
}

func run() error {
	ctx := ctrl.SetupSignalHandler()
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(kueue.AddToScheme(scheme))
	utilruntime.Must(config.AddToScheme(scheme))
	mgr, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		return err
	}
	if err := indexer.Setup(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	settings := &config.Configuration{}
	scheme.Default(settings)

	expected := preemption.New()
	cache := schdcache.New(mgr.GetClient())
	requeuer := qcache.NewRequeuer(qcache.WithBatchPeriod(100 * time.Millisecond))
	if err := mgr.Add(requeuer); err != nil {
		return err
	}
	queues := qcache.NewManager(mgr.GetClient(), cache, requeuer, qcache.WithPreemptionExpectations(expected))
	options := core.SetupControllersOpts{PreemptionExpectations: expected}
	if _, err := core.SetupControllers(mgr, queues, cache, settings, options); err != nil {
		return err
	}
	go queues.CleanUpOnContext(ctx)
	go cache.CleanUpOnContext(ctx)
	admission := scheduler.New(queues, cache, mgr.GetClient(), mgr.GetEventRecorder(constants.AdmissionName),
		scheduler.WithPreemptionExpectations(expected))
	if err := mgr.Add(admission); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
