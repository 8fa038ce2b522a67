"""Progress and checkpoint reports from training pods: server, authentication, log watcher, status writer."""
