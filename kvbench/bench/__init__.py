"""One run: configuration -> workload -> system -> result. Draws nothing, prints nothing."""
