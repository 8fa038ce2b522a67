"""Pure parts of the webhooks: patches of pods and their owners, and the conditions under which they are called."""
