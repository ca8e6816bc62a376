"""A workload and a cache without a clock: replays, bounds on hits, the state of the cache at t = 0."""
