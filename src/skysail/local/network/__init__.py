"""Pod network of the local cluster: addresses, DNS, Services, egress policy and proxy. Needs only `ip`."""
