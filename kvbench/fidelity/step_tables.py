"""Tables of measured steps: CSV of step_tokens, prefill_tokens, decodes, context, ms."""

from __future__ import annotations

from collections.abc import Sequence

NEEDED = ("step_tokens", "prefill_tokens", "decodes", "context", "ms")


def is_step_table(header: Sequence[str]) -> bool:
    """Whether these are the columns of such a table."""
    return set(NEEDED) <= set(header)
