"""The measured clock: the same engine, whose steps really run on this machine."""
