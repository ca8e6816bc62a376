"""Eviction policies: who leaves the cache first, each a small module of functions on node records."""
