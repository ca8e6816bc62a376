"""What moves beside the steps really moves: each operation that an engine begins is a copy of bytes.

The table of operations (memory.operations) says what goes where. An operation is carried out when it has begun, in the
order of the device's queue; the time that its copy took is the time that it takes on its link (`Stepper.took`). Both
sides of a copy belong to it until its end, and then, in check mode, its bytes are compared: whoever wrote under it
is noticed. What ends as a failure leaves noise where it was to write, so that nobody can have use of it.

    device -> host, host -> device    between the memories of a device and of the host, by the kernels of the model
    host -> storage, storage -> host  files of a folder, see page_files; a broken page fails its operation
    device -> device                  between the devices of two engines
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..core.errors import KvbenchError
from ..core.requests import I64
from ..engine.cached import cached_prefixes
from ..engine.observe import fields_of
from ..memory.operations import (
    BACKUP,
    DRAINING,
    FAILED,
    KIND_NAMES,
    LOAD,
    MOVING,
    OP_COUNT,
    OP_FIRST,
    OP_KIND,
    OP_NUMBER,
    OP_OWNER,
    OP_SEQ,
    OP_SOURCE,
    OP_SOURCE_EPOCH,
    OP_START,
    OP_STATE,
    OP_STORE_FIRST,
    OP_TARGET,
    OP_TARGET_EPOCH,
    OP_TARGET_FIRST,
    OP_TIER_COUNT,
    OP_TIER_FIRST,
    PREFETCH,
    RESERVED,
    SEND,
    STORE,
    TIMER,
)
from ..scheduler.state import Engine
from ..tiers.probe import drop
from . import stepwise
from .page_files import BrokenPage, PageFiles
from .worker import Memory

NOISE = 0xA5


@dataclass
class Place:
    """An engine, its device, and its part of host memory (None without a tier)."""

    engine: Engine
    device: Memory
    host: Memory | None = None


@dataclass
class Copy:
    """One that was made. ids: blocks or slots; a side that is no memory (a file, nothing) has none. sums: of each.

    was_given   its source was somebody else's already (write-back)
    """

    kind: int
    owner: int
    source: Memory | None
    source_ids: I64
    target: Memory | None
    target_ids: I64
    was_given: bool = False
    sums: list[int] = field(default_factory=list)

    def compare(self) -> None:
        """KvbenchError: one of its sides was written meanwhile. Nothing is known of a copy without sums."""
        for memory, ids, is_source in ((self.source, self.source_ids, True), (self.target, self.target_ids, False)):
            if memory is None or not self.sums or (is_source and self.was_given):
                continue
            for one, before, after in zip(ids.tolist(), self.sums, _sums(memory, ids), strict=True):
                if before != after:
                    raise KvbenchError(_violation(self.kind, one, is_source, self.owner))


class Copies:
    """Those of a run.

    places    by the number of the engine
    pages     storage, or None
    launch    runs a function on the device's queue and waits for it
    compares  what was copied is compared at its end
    layers    of the model, where transfers go layer by layer
    moved_bytes   by kind of operation. broken: pages that were none, a line each
    """

    def __init__(
        self,
        places: Sequence[Place],
        pages: PageFiles | None,
        launch: Callable[[Callable[[], None]], None],
        compares: bool,
        layers: int = 1,
    ) -> None:
        self.places, self._pages, self._launch, self._compares = places, pages, launch, compares
        self._operations = places[0].engine.operations
        self._layers = layers
        self._made: dict[int, Copy | None] = {}
        self._seen, self._waiting = 0, False
        self._lies: dict[int, int] = {}
        self._broken_slots: list[tuple[int, int]] = []
        self.moved_bytes = dict.fromkeys(KIND_NAMES, 0)
        self.broken: list[str] = []

    def look(self, opened: int) -> bool:
        """Carry out what has begun since the last look. opened: operations so far. Returns whether there was any."""
        if opened == self._seen and not self._waiting:
            return False
        ops = fields_of(self._operations)
        rows = ops["rows"]
        fresh = [
            at
            for at in np.flatnonzero(np.isin(rows[:, OP_STATE], (MOVING, DRAINING))).tolist()
            if int(rows[at, OP_NUMBER]) not in self._made
        ]
        for at in sorted(fresh, key=lambda at: (not _is_written_back(rows[at]), rows[at, OP_NUMBER])):
            self._make(at, rows[at], ops["blocks"])
        self._seen, self._waiting = opened, bool((rows[:, OP_STATE] == RESERVED).any())
        return bool(fresh)

    def end(self, at: int) -> None:
        """An operation has ended. KvbenchError: its bytes were written under it."""
        row = fields_of(self._operations)["rows"][at]
        copy = self._made.pop(int(row[OP_NUMBER]))
        if copy is None:
            return
        is_alive = all(
            row[end] < 0 or row[epoch] == self.places[row[end]].engine.side.epoch
            for end, epoch in ((OP_SOURCE, OP_SOURCE_EPOCH), (OP_TARGET, OP_TARGET_EPOCH))
        )
        if row[OP_STATE] == FAILED:
            if copy.target is not None and is_alive:
                noise = np.full((copy.target_ids.size, copy.target.block_bytes), NOISE, np.uint8)
                copy.target.write(copy.target_ids, noise)
        elif is_alive:
            copy.compare()

    def drain(self) -> None:
        """The run is over: what is still under way is compared as it is."""
        for copy in self._made.values():
            if copy is not None:
                copy.compare()

    def note_cached(self) -> None:
        """Write-back: where the blocks lie that the next plan may evict, of which it tells the names alone."""
        place = self.places[0]
        if place.engine.tiers.writes_back:
            self._lies |= cached_prefixes(place.engine)

    def drop_broken(self) -> None:
        """A page that was none is not found again, once nobody reads it."""
        store = self.places[0].engine.tiers.store
        for slot, content in self._broken_slots:
            if int(store.content[slot]) == content and int(store.holds[slot]) == 0:
                drop(store, slot)
        self._broken_slots = [
            (slot, content) for slot, content in self._broken_slots if int(store.content[slot]) == content
        ]

    # ---------------------------------------------------------------- one copy

    def _make(self, at: int, row: I64, blocks: NDArray[np.int32]) -> None:
        kind, number = int(row[OP_KIND]), int(row[OP_NUMBER])
        self._made[number] = None
        if kind == TIMER:
            return
        engine = self.places[int(row[OP_SOURCE]) if row[OP_SOURCE] >= 0 else int(row[OP_TARGET])].engine
        copy = self._made[number] = self._sides(row, blocks)
        took = self._timed(lambda: self._carry_out(row, copy, blocks))
        if kind == SEND and self._layers > 1:  # all but the last layer went out while the step ran
            step = int(engine.now) - int(engine.began)
            took = max(took - step * (self._layers - 1) // self._layers, took // self._layers, 1)
        stepwise.took(engine, at, took)
        if kind == PREFETCH and copy.target_ids.size < row[OP_TIER_COUNT]:
            stepwise.cut_short(engine, at, copy.target_ids.size)
        memory = copy.target if copy.target is not None else copy.source
        assert memory is not None
        ids = copy.target_ids if copy.target is not None else copy.source_ids
        self.moved_bytes[KIND_NAMES[kind]] += ids.size * memory.block_bytes
        if self._compares:
            copy.sums = _sums(memory, ids)

    def _timed(self, move: Callable[[], None]) -> int:
        spent = [0]

        def run() -> None:
            begin = time.perf_counter_ns()
            move()
            spent[0] = time.perf_counter_ns() - begin

        self._launch(run)
        return max(spent[0], 1)

    def _sides(self, row: I64, blocks: NDArray[np.int32]) -> Copy:
        """From where to where."""
        kind, owner = int(row[OP_KIND]), int(row[OP_OWNER])
        source, target = (_ids(blocks, row, first) for first in (OP_FIRST, OP_TARGET_FIRST))
        slots = _ids(blocks, row, OP_TIER_FIRST)
        of, to = self.places[int(row[OP_SOURCE])], self.places[int(row[OP_TARGET])]
        if kind == BACKUP:
            if slots.size:
                source = self._blocks_of(row, of, source, slots)
            return Copy(kind, owner, of.device, source, of.host if slots.size else None, slots, _is_written_back(row))
        if kind == LOAD:
            if to.engine.tiers.writes_back:
                content = to.engine.tiers.host.content
                self._lies |= {int(content[s]): int(b) for s, b in zip(slots, target, strict=True)}
            return Copy(kind, owner, to.host, slots, to.device, target)
        if kind == PREFETCH:
            return Copy(kind, owner, None, slots[:0], to.host, slots)
        if kind == STORE:
            return Copy(kind, owner, of.host, slots, None, slots[:0])
        assert kind == SEND
        return Copy(kind, owner, of.device, source, to.device, target)

    def _blocks_of(self, row: I64, place: Place, offered: I64, slots: I64) -> I64:
        """The device's blocks of what is written to the host: it may have some of an offer already."""
        names = place.engine.tiers.host.content[slots].tolist()
        lies = self._lies
        if not _is_written_back(row):
            start = int(row[OP_START])
            chain = stepwise.names_of(place.engine, int(row[OP_SEQ]), start + offered.size)[start:]
            lies = dict(zip(chain.tolist(), offered.tolist(), strict=True))
        if any(name not in lies for name in names):
            raise KvbenchError("a block is to be copied to host memory, and nobody knows where it lies")
        return np.array([lies[name] for name in names], np.int64)

    def _carry_out(self, row: I64, copy: Copy, blocks: NDArray[np.int32]) -> None:
        if copy.source is not None and copy.target is not None:
            copy.target.copy_from(copy.source, np.stack((copy.source_ids, copy.target_ids), axis=1))
            return
        if copy.kind == BACKUP:  # without a tier: everything is read, and nothing is found again
            copy.source.read(copy.source_ids)
            return
        pages, slots = _ids(blocks, row, OP_STORE_FIRST), _ids(blocks, row, OP_TIER_FIRST)
        if copy.kind == STORE:
            self._store(copy, pages, slots)
        else:
            self._fetch(copy, pages, slots)

    def _store(self, copy: Copy, pages: I64, slots: I64) -> None:
        assert self._pages is not None
        assert copy.source is not None
        names = self.places[0].engine.tiers.store.content
        for page, content in zip(pages.tolist(), copy.source.read(slots), strict=True):
            self._pages.write(page, int(names[page]), content)

    def _fetch(self, copy: Copy, pages: I64, slots: I64) -> None:
        """Pages as far as they are sound; the first that is not ends it."""
        assert self._pages is not None
        assert copy.target is not None
        names = self.places[0].engine.tiers.store.content
        for done, page in enumerate(pages.tolist()):
            name = int(names[page])
            try:
                content = self._pages.read(page, name)
            except BrokenPage as error:
                if (page, name) not in self._broken_slots:
                    self._broken_slots.append((page, name))
                    self.broken.append(str(error))
                copy.target_ids = slots[:done]
                return
            copy.target.write(slots[done : done + 1], content[None])


def _is_written_back(row: I64) -> bool:
    return bool(row[OP_KIND] == BACKUP and row[OP_COUNT] == 0)


def _ids(blocks: NDArray[np.int32], row: I64, first: int) -> I64:
    """The column after `first` is how many."""
    return blocks[row[first] : row[first] + row[first + 1]].astype(np.int64)


def _sums(memory: Memory, ids: I64) -> list[int]:
    return [zlib.crc32(content) for content in memory.read(ids)] if ids.size else []


def _violation(kind: int, one: int, is_source: bool, owner: int) -> str:
    if kind == BACKUP and is_source:
        return f"block {one} was written while it was being copied to host memory"
    if kind == SEND:
        what = "read" if is_source else "written"
        return f"block {one} was written while it was being {what} for sequence {owner}"
    if kind == LOAD:
        where = f"slot {one} of host memory" if is_source else f"block {one}"
        return f"{where} was written while it was being loaded for sequence {owner}"
    return f"slot {one} of host memory was written by somebody else than its {KIND_NAMES[kind]}"
