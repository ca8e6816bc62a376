"""Several engines, their clients, and the loop that gives each its turn."""
