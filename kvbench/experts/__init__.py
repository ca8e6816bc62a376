"""Experts of a mixture: where they lie, how they are loaded, what it takes to move them. NumPy, between two steps."""
