"""Reflectors, typed caches, informers, discovery of served kinds, and the cache audit."""
