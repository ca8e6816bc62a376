"""Which format a trace has: told by its content, not by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..core.errors import UsageError
from ..core.requests import Requests
from .formats import azure, mooncake
from .formats.lines import cells
from .options import TraceOptions
from .rows import shown
from .source import Source, Trace

Reader = Callable[[Trace, TraceOptions], Requests]

READERS: dict[str, Reader] = {"mooncake": mooncake.read, "azure": azure.read}
UNTIMED: tuple[str, ...] = ()


def recognised(trace: Trace) -> str:
    lines, numbers = trace.files[0].lines()
    if lines[0].startswith("{"):
        return "mooncake"
    if set(azure.COLUMNS) <= set(cells(lines[0])):
        return "azure"
    raise UsageError(f"{trace.name}:{numbers[0]}: {shown(lines[0])} no")
