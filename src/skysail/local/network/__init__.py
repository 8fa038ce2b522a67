"""The pod network inside the hull: addresses, names, Services, and a guarded way out. Needs no program but `ip`."""
