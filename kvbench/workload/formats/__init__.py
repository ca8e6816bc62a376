"""Readers of trace formats: one module each, `read(trace, options) -> Requests`, and what they share."""
