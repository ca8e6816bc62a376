"""What a fuzz did: a line per combination, then every failure with the command that shows it again."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from .table import WIDTH, grid


@dataclass(frozen=True)
class FuzzFailure:
    """Round and step of a failure, what was wrong, and a command."""

    round: int
    step: int
    what: str
    command: str


@dataclass(frozen=True)
class FuzzLine:
    """One combination.

    ended_early   rounds that ended where the engine itself would have, out of memory
    unvisited     states that no sequence was in; None: nobody counted
    """

    combination: str
    operations: int
    steps: int
    preemptions: int
    evictions: int
    cancels: int
    ended_early: int
    failures: Sequence[FuzzFailure]
    unvisited: Sequence[str] | None = None


def fuzz_report(lines: Sequence[FuzzLine], seed: int) -> str:
    """The whole report, at most 100 columns wide but for the commands, which are to be copied."""
    head = ["combination", "operations", "steps", "preempted", "evicted", "cancelled", "failed"]
    rows = [
        [x.combination, *(f"{n:,}" for n in (x.operations, x.steps, x.preemptions, x.evictions, x.cancels)), _failed(x)]
        for x in lines
    ]
    parts = [grid(head, rows), _totals(lines, seed)]
    parts += [_failure(line, failure, seed) for line in lines for failure in line.failures]
    return "\n\n".join(parts) + "\n"


def _failed(line: FuzzLine) -> str:
    return str(len(line.failures))


def _totals(lines: Sequence[FuzzLine], seed: int) -> str:
    failures, early = sum(len(x.failures) for x in lines), sum(x.ended_early for x in lines)
    text = (
        f"seed {seed}: {sum(x.operations for x in lines):,} operations, each an engine step, the arrival of a sequence "
        f"or a cancel; all blocks, tables, trees and counters checked after every step; {failures:,} failures"
    )
    if early:
        text += f"; {early:,} rounds ended early, out of KV memory under mixed or shared chunks, as the engine does"
    counted = [x for x in lines if x.unvisited is not None]
    for line in counted:
        if line.unvisited:
            text += f"; {line.combination} never visited {', '.join(line.unvisited)}"
    if counted and not any(x.unvisited for x in counted):
        text += "; every state of both sides was visited"
    return textwrap.fill(text, WIDTH)


def _failure(line: FuzzLine, failure: FuzzFailure, seed: int) -> str:
    where = f"FAILED {line.combination}, seed {seed}, round {failure.round}, step {failure.step}: {failure.what}"
    return f"{textwrap.fill(where, WIDTH, subsequent_indent='  ')}\n  {failure.command}"
