"""Traces and generated requests."""
