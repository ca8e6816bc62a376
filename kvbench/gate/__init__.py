"""Comparisons and verdicts: of runs that are there (compare, gate), and of two sides run in turn (ab)."""
