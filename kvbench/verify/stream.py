"""What every kind of stream is to whoever replays it, and the engine behind most of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar, Protocol

import numpy as np

from ..core.requests import I64
from ..costs.axes import Grid, Line
from ..costs.tables import CostTables, Overheads, build_tables
from ..engine import probe
from ..engine.arrival import as_asked
from ..engine.build import build_engine, share
from ..engine.disciplines import discipline_of
from ..engine.observe import View, fields_of, view
from ..engine.settings import EngineSettings
from .content import Asked, request_table
from .recording import Row

EVICTION_LOG = 1 << 16

Observed = dict[str, Any]


class Stream(Protocol):
    """A component of kvbench that is led through the rows of a recording.

    ENGINE, VERSIONS   whose recordings it understands
    PARAMS             names of parameters it understands; those of FIXED only with that value, or one of a frozenset
    NEVER              of some: a value that no router of kvbench can have, and why
    """

    ENGINE: ClassVar[str]
    VERSIONS: ClassVar[tuple[str, ...]]
    PARAMS: ClassVar[frozenset[str]]
    FIXED: ClassVar[dict[str, Any]]

    def __init__(self, header: Row, rows: Sequence[Row]) -> None: ...

    def step(self, row: Row) -> Observed:
        """Do what the row says. Returns what is to be seen, by the names of the recorded fields."""
        ...

    def last(self) -> Observed:
        """What the last line should say."""
        ...


@cache
def no_costs() -> CostTables:
    """Tables for engines whose steps are not timed."""
    line, grid = Line(0, np.zeros(2)), Grid(0, 0, np.zeros((2, 2)), np.zeros((2, 2)))
    return build_tables(line, line, line, grid, grid, Overheads(0.0, 0.0, 0.0))


class EngineStream:
    """An engine of the product for the requests of a recording, by their ids."""

    FIXED: ClassVar[dict[str, Any]] = {}

    def __init__(self, ids: Sequence[str], asked: Sequence[Asked], settings: EngineSettings) -> None:
        self.ids = list(ids)
        self.index = {name: i for i, name in enumerate(self.ids)}
        self.requests = request_table(asked)
        shared = share(self.requests, settings, taken=as_asked(self.requests, settings))
        self.engine = build_engine(shared, settings, no_costs(), log=EVICTION_LOG)
        self.discipline = discipline_of(self.engine)
        self.block_tokens = settings.block_tokens
        state = fields_of(self.engine)
        self.seqs: dict[str, I64] = fields_of(state["seqs"])
        slots = fields_of(state["slots"])
        self.rec, self.table = slots["rec"], slots["table"]
        self.plan_array, self.victims = state["plan"], state["victims"]
        self.evicted_nodes = fields_of(state["tree"])["log"]
        self.evicted_blocks = fields_of(state["hashes"])["log"]

    def view(self) -> View:
        return view(self.engine)

    def leave(self, seq: int) -> None:
        """A sequence is cancelled, wherever it is."""
        self.discipline.cancel(self.engine, seq)
        probe.settle(self.engine)

    def named(self, seqs: Iterable[int]) -> list[str]:
        return [self.ids[seq] for seq in seqs]

    def sizes(self, now: View) -> list[int]:
        """Free, evictable and protected tokens."""
        return [n * self.block_tokens for n in (now.free, now.evictable, now.protected)]


def follow(at: int, links: Any, end: int) -> Iterator[int]:
    """The members of a linked list."""
    while at != end:
        yield int(at)
        at = int(links[at])
