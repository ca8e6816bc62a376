"""Latencies, percentiles and totals from journal rows; never from live objects. Formats nothing."""
