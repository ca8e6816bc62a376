"""`kvbench env` and `kvbench doctor` as text and as documents."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from .table import WIDTH, grid

GOOD_ENOUGH = "a measured run here can be trusted as far as these checks go"
NOT_GOOD = "a measured run here would not be trustworthy; the modelled clock needs none of this"


def environment_text(found: Mapping[str, Any]) -> str:
    """Tables as headings with a line for each entry; what is empty is said."""
    lines = []
    for name, value in found.items():
        if not isinstance(value, Mapping):
            lines.append(f"{name}: {value or '-'}")
            continue
        lines.append(f"{name}:")
        lines += [f"  {key}: {'-' if inner == '' else inner}" for key, inner in value.items()] or ["  none"]
    return "\n".join(lines) + "\n"


def doctor_table(checks: Sequence[Any], trusted: bool) -> str:
    """checks: with name, state, found and mend, all text."""
    width = WIDTH - 2 - max(len(check.name) for check in checks) - 2 - len("state") - 2
    rows = []
    for check in checks:
        text = check.found + (f"; to mend: {check.mend}" if check.mend else "")
        rows += [
            [check.name if i == 0 else "", check.state if i == 0 else "", line]
            for i, line in enumerate(textwrap.wrap(text, width))
        ]
    table = grid(["check", "state", "found"], rows, align=("left", "left", "left"))
    return f"{table}\n\n{GOOD_ENOUGH if trusted else NOT_GOOD}\n"


def doctor_document(checks: Sequence[Any], trusted: bool) -> dict[str, Any]:
    """What `--json` prints."""
    return {"trustworthy": trusted, "checks": [vars(check) for check in checks]}
