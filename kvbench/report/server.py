"""What a server's own figures say: a table of at most 100 columns and a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .record import SCHEMA
from .table import labelled, note

SHOWN, NOT_SHOWN, CANNOT_TELL = "shown", "not shown", "cannot be told"


@dataclass(frozen=True)
class Finding:
    """One symptom. evidence: figures of the file. missing: what is not known, and what would tell; "": nothing."""

    name: str
    title: str
    state: str
    evidence: tuple[str, ...]
    missing: str = ""


def server_table(source: str, found: Sequence[Finding]) -> str:
    """Symptoms that are shown, those that are not, those of which the file says nothing, and a sentence."""
    parts = [labelled([("read", source)])]
    for state in (SHOWN, NOT_SHOWN, CANNOT_TELL):
        rows = [row for one in found if one.state == state for row in _rows(one)]
        if rows:
            parts.append(f"{state}\n" + labelled(rows))
    return "\n\n".join([*parts, note(answer(found))])


def _rows(one: Finding) -> list[tuple[str, str]]:
    more = [("", f"not told: {one.missing}")] if one.missing else []
    return [("", one.title + ":"), *(("", f"  {line}") for line in one.evidence), *more]


def answer(found: Sequence[Finding]) -> str:
    """In one sentence."""
    shown = [one.title for one in found if one.state == SHOWN]
    unknown = sum(one.state == CANNOT_TELL for one in found)
    rest = f" {unknown} of {len(found)} symptoms cannot be told from this file." if unknown else ""
    return (f"Shown: {'; '.join(shown)}." if shown else "No symptom is shown.") + rest


def server_document(source: str, found: Sequence[Finding]) -> dict[str, Any]:
    """What `--json` prints."""
    return {"schema": SCHEMA, "source": source, "findings": [asdict(one) for one in found], "answer": answer(found)}
