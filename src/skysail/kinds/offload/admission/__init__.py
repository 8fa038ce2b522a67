"""Pure parts of the webhooks: patches of pods, Jobs and CronJobs, and the conditions under which they are called."""
