"""Recordings made anew: scripts of operations, the engines that can be led through them, and the files."""
