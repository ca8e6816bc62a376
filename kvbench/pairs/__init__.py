"""Prefill and decode on engines of their own: what both sides do, in either protocol."""
