"""Jitted array code that knows nothing of blocks or requests."""
