"""kvbench: what a KV-cache design does to the latency tail, before a GPU is touched."""

__version__ = "0.1.0"
