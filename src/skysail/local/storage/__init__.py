"""Volumes of pods as directories of this machine, and the provisioner of PersistentVolumes."""
