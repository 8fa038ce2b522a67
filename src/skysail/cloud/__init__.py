"""Places where pods run. Knows no Kubernetes: a vendor's SDK is imported only in its own folder below this one."""
