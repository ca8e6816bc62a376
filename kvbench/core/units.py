"""Units. All internal time is int64 nanoseconds; names carry the unit as a suffix."""

from __future__ import annotations

from typing import TypeAlias

Nanoseconds: TypeAlias = int

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000

NEVER_NS = 1 << 62
"""A time that does not come; later than any real one, and still safe to add a duration to."""
