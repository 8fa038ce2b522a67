"""NetworkPolicies on the local cluster: isolation of pods, the ruleset that enforces it, and its loading."""
