"""What an engine looks like between two verbs, for whoever compares it with a recording or a reference.

Reading one field of a state struct from Python makes Python objects of all of them; here one compiled call reads
the scalars that change. Arrays are read once: they stay where they are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..core.jit import entry
from ..scheduler.state import Engine


class View(NamedTuple):
    """free, evictable, protected in blocks; evicted_nodes, evicted_blocks: entries of the two eviction logs."""

    free: int
    evictable: int
    protected: int
    distinct_hashes: int
    evicted_nodes: int
    evicted_blocks: int
    num_plan: int
    num_victims: int
    queue_head: int
    running_head: int
    running: int
    holders: int
    chunk: int
    batch_is_full: bool
    new_token_ratio: float


@entry
def _read(e):
    return (
        e.pool.num_free,
        e.tree.evictable,
        e.tree.protected,
        e.hashes.distinct,
        e.tree.log_size,
        e.hashes.log_size,
        e.num_plan,
        e.num_victims,
        e.queue_head,
        e.slots.head,
        e.slots.running,
        e.slots.holders,
        e.chunk,
        e.batch_is_full,
        e.ratio,
    )


@entry
def fault_of(e):
    """Why the loop stopped, see state_columns.NO_FAULT."""
    return e.fault


def fields_of(state: Any) -> dict[str, Any]:
    """All fields of a state struct by name; its arrays are the struct's own."""
    fields: dict[str, Any] = state.read()
    return fields


def view(engine: Engine) -> View:
    """The engine now."""
    return View(*_read(engine))
