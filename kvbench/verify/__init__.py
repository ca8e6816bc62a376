"""Whether kvbench does what it says: its own code against recordings of the real engines."""
