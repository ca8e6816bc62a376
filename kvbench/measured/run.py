"""The measured clock: the same engine, whose steps really run, on a worker thread.

    plan (host)  ->  launch (worker)  ->  commit (host)

Serial: the host waits for the step, commits, plans the next. Overlap: step n is planned while step n - 1 runs, and its
results are committed a step late, exactly as on the modelled clock. The clock is virtual where nothing runs: it jumps
over idle time, and adds what was measured: host time (planning, taking down, committing) and device time.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from ..cluster.fleet import Fleet, Member
from ..cluster.loop import CONTROL, DONE, FAULT, MOVED, MUST_WAIT, PAUSED, PLANNED
from ..cluster.simulation import Simulation
from ..core.errors import KvbenchError, UsageError
from ..core.journal import Counters
from ..core.requests import I64, Requests
from ..costs.tables import CostTables
from ..engine.cached import cached_prefixes
from ..engine.forking import with_beams
from ..engine.observe import fields_of
from ..engine.settings import EngineSettings
from ..prefix.chain_hash import chain, root_hash
from ..prefix.keys import sequence_keys
from . import stepwise
from .copies import NOISE, Copies
from .page_files import PageFiles
from .retracted import Retracted
from .seat import Seat
from .texts import Texts
from .worker import Device, DoneStep, PlannedStep, Worker


@dataclass
class Measures:
    """What was measured beside latencies.

    kernel_ns      by kind, over all steps
    copied_blocks  by copy on write
    load           of the machine when the run was made: processes that wanted a CPU, over the last minute
    """

    kernel_ns: Counter[str] = field(default_factory=Counter)
    device_ns: int = 0
    host_ns: int = 0
    copied_blocks: int = 0
    load: float = field(default_factory=lambda: os.getloadavg()[0])


class MeasuredRun(Simulation):
    """Engines on the measured clock: one, or a pair's two sides.

    devices      of each engine: a model with its KV; it has one block more than the engine uses, since ids begin at 1
    temperature  0 = greedy
    plant        a fault of worker.PLANTED, for the token proof
    folder       of the files of storage; None: one that is gone afterwards
    """

    def __init__(
        self,
        requests: Requests,
        settings: EngineSettings,
        tables: CostTables,
        devices: Device | Sequence[Device],
        temperature: float = 0.0,
        plant: str = "",
        folder: Path | None = None,
        fleet: Fleet | None = None,
    ) -> None:
        _check(requests, settings)
        fleet = fleet or Fleet((Member(settings, tables),))
        steps = [replace(m, settings=replace(m.settings, record_steps=True, fast=False)) for m in fleet.members]
        super().__init__(requests, steps[0].settings, tables, replace(fleet, members=tuple(steps)))
        self.measures = Measures()
        devices = devices if isinstance(devices, Sequence) else (devices,)
        self._temperature = temperature
        self._logits: dict[int, NDArray[np.float32]] = {}
        output = fields_of(self.seqs)["output"]
        self.texts = Texts(with_beams(requests, settings), output, devices[0].vocab, settings.seed)
        self.seats = [
            Seat(
                engine,
                device,
                Worker(device, self.texts, settings.block_tokens, temperature, plant),
                settings.tiers.host_blocks,
            )
            for engine, device in zip(self.engines, devices, strict=True)
        ]
        self._stepper = stepwise.Stepper(self.world)
        self._folder: TemporaryDirectory[str] | None = None
        self.moves = Copies(self.seats, self._pages(folder), self._queue(plant), self._compares(plant), self._layers())
        self._retracted = [Retracted(seat) for seat in self.seats]
        self._running: Future[DoneStep] | None = None
        self._mark = 0
        self._attended = 0

    @property
    def device(self) -> Device:
        """Of the first engine."""
        return self.seats[0].model

    def _pages(self, folder: Path | None) -> PageFiles | None:
        """Storage, where there is any."""
        rules = self.settings.tiers
        if not (rules.on and rules.store.blocks):
            return None
        if folder is None:
            self._folder = TemporaryDirectory(prefix="kvbench-storage-")
            folder = Path(self._folder.name)
        return PageFiles(folder, self.device.block_bytes)

    def _queue(self, plant: str) -> Callable[[Callable[[], None]], None]:
        """Where copies run. Several engines run one after the other, so any of their queues is as good."""
        return (lambda move: None) if plant == "skip_move" else self.seats[0].worker.run

    def _layers(self) -> int:
        return 1 if self.fleet.pairs is None else self.fleet.pairs.layers

    def _compares(self, plant: str) -> bool:
        moves = self.settings.tiers.on or self.fleet.pairs is not None
        return plant != "skip_move" and (self.settings.check or not moves)

    # ---------------------------------------------------------------- the loop

    slice_steps = 20

    def _advance(self, until_ns: int, max_steps: int) -> bool:
        self._mark = time.perf_counter_ns()
        self._reached_time = False
        for _ in range(min(max_steps, 1 << 40)):
            with np.errstate(over="ignore"):
                status = self._step(until_ns)
            if status == FAULT:
                raise KvbenchError(self.fault())
            if status in (DONE, PAUSED):
                self._reached_time = status == PAUSED
                return status == DONE
        return False

    def run(self, progress: Callable[[int, int], None] | None = None) -> bool:
        """Run to the end, calling progress(sequences done, all) now and then."""
        try:
            super().run(progress)
            self.moves.drain()
        finally:
            if self._running is not None:
                self._running.result()
            for seat in self.seats:
                seat.worker.close()
            if self._folder is not None:
                self._folder.cleanup()
        return True

    def _step(self, until_ns: int) -> int:
        self._before_plan()
        status = self._stepper.plan(until_ns)
        if status == PLANNED and self.settings.tiers.writes_back:
            stepwise.write_evicted(self.engine)
        has_begun = self._look()
        if status == MOVED:
            if not has_begun:  # else it takes longer than it seemed
                self._end_next()
        elif status == CONTROL:
            self.act()
        elif status == MUST_WAIT:
            self._land()
            self._stepper.wait()
        elif status == PLANNED:
            seat = self.seats[self.world.at]
            planned = seat.take_down()
            if len(self.seats) > 1:
                self._run_among(seat, planned)
            elif self.settings.overlap:
                self._launch_beside(planned)
            else:
                self._run_through(planned)
            self._look()
        return status

    def _before_plan(self) -> None:
        before = time.perf_counter_ns()
        self.moves.note_cached()
        for retracted in self._retracted:
            retracted.before()
        self._mark += time.perf_counter_ns() - before

    def _look(self) -> bool:
        """What has begun to move is copied, on no clock but its link's. Returns whether there was anything."""
        before = time.perf_counter_ns()
        for retracted in self._retracted:
            retracted.after()
        has_begun = self.moves.look(stepwise.now(self.engine).operations)
        self._mark += time.perf_counter_ns() - before
        return has_begun

    def _end_next(self) -> None:
        before = time.perf_counter_ns()
        self.moves.end(self._stepper.end_next())
        self.moves.drop_broken()
        self._mark += time.perf_counter_ns() - before

    def _run_through(self, planned: PlannedStep) -> None:
        """Serial: launch, wait, commit."""
        host = self._host_time()
        done = self.seats[0].worker.launch(planned).result()
        self._mark = time.perf_counter_ns()
        self._note(done)
        self._stepper.complete(host, done.device_ns)
        self._follow_forks(done)
        self.measures.host_ns += host

    def _run_among(self, seat: Seat, planned: PlannedStep) -> None:
        """Of several engines: it runs by itself, and lands when its time has come."""
        host = self._host_time()
        done = seat.worker.launch(planned).result()
        self._mark = time.perf_counter_ns()
        self._note(done)
        self._stepper.launched(host, done.device_ns)
        self.measures.host_ns += host

    def _launch_beside(self, planned: PlannedStep) -> None:
        """Overlap: what runs has to end, then this step is launched and the results of the other one are committed."""
        host = self._host_time()
        self._land()
        self._running = self.seats[0].worker.launch(planned)
        host += self._host_time()
        self._stepper.complete(host, 0)
        self.measures.host_ns += host

    def _land(self) -> None:
        """Wait for the step that runs; its device time is known now."""
        if self._running is None:
            return
        done = self._running.result()
        self._running = None
        self._mark = time.perf_counter_ns()
        self._note(done)
        stepwise.landed(self.engine, done.device_ns)

    def _host_time(self) -> int:
        """ns since the last mark, which moves."""
        now = time.perf_counter_ns()
        took, self._mark = now - self._mark, now
        return took

    def cache_prepared(self, leading: I64) -> None:
        """The KV of what lies in the cache at t = 0 is computed; nothing of it is counted."""
        super().cache_prepared(leading)
        e, bt = self.engine, self.settings.block_tokens
        block_of = cached_prefixes(e)
        written: set[int] = set()
        for request in np.flatnonzero(leading).tolist():
            seq = int(self.seats[0].seqs["first"][request])
            with np.errstate(over="ignore"):
                content, blocks = root_hash(self.seats[0].seqs["namespace"][seq]), []
                for key in sequence_keys(e.block_keys, seq, int(leading[request])):
                    content = chain(content, key)
                    blocks.append(block_of.get(int(content), 0))
            blocks = blocks[: blocks.index(0)] if 0 in blocks else blocks
            there = next((i for i, block in enumerate(blocks) if block not in written), len(blocks))
            if there == len(blocks):
                continue
            written.update(blocks)
            nobody = np.array([seq]), np.array([there * bt]), np.array([(len(blocks) - there) * bt])
            tables, copies = np.array([blocks], np.int32), np.empty((0, 2), np.int64)
            self.seats[0].worker.launch(PlannedStep(*nobody, np.array([1 << 40]), tables, copies)).result()

    def counters(self) -> Counters:
        """Break-even is a figure of the cost tables: no tables say how long a prompt takes here."""
        c = super().counters()
        if c.tiers is None:
            return c
        tiers = replace(c.tiers, link_up=0.0, break_even=0.0, break_even_tokens=0, fetched=0, lost=0)
        return replace(c, tiers=tiers)

    def _have_incident(self) -> None:
        """An engine that is lost has lost what its device held."""
        super()._have_incident()
        for seat, retracted, engine in zip(self.seats, self._retracted, self.engines, strict=True):
            if engine is not seat.engine:
                retracted.forget()
                blocks = np.arange(1, int(fields_of(fields_of(engine)["pool"])["num_blocks"]) + 1)
                seat.device.write(blocks, np.full((blocks.size, seat.device.block_bytes), NOISE, np.uint8))
                seat.take(engine)

    def attended_bytes(self, block_bytes: int) -> int:
        """KV that decode attention has read so far."""
        return self._attended * block_bytes // self.settings.block_tokens

    # ---------------------------------------------------------------- what a step needs, what it leaves

    def _note(self, done: DoneStep) -> None:
        self.measures.kernel_ns.update(done.result.kernel_ns)
        self.measures.device_ns += done.device_ns
        self.measures.copied_blocks += len(done.planned.copies)
        decodes = done.planned.tokens == 1
        self._attended += int((done.planned.starts[decodes] + 1).sum())

    def _follow_forks(self, done: DoneStep) -> None:
        """Copy on write: who took over a table in this commit says what its donor said, then a token of its own.

        It comes from the logits that the donor came to last. A sample draws it with its own key; of beams that go on
        from one parent, each takes the next likely token.
        """
        if not self.settings.cache.copy_on_write:
            return
        planned, width = done.planned, self.settings.beam.width
        for row in np.flatnonzero(planned.emits).tolist():
            self._logits[int(planned.seqs[row])] = done.result.logits[row].copy()
        takers: Counter[int] = Counter()
        for donor, seq, tokens in self.seats[0].forks().tolist():
            index = tokens - int(self.texts.prompt_tokens[seq])
            takers[donor] += 1
            if index >= int(self.texts.output[seq]):
                continue
            self.texts.take_over(donor, seq, index)
            logits = self._logits[seq] = self._logits[donor]
            if width:
                token = int(np.argsort(-logits, kind="stable")[takers[donor]])
            else:
                key = self.texts.sample_keys(np.array([seq]), np.array([index]))
                token = int(self.device.sample(logits[None], key, self._temperature)[0])
            self.texts.say(seq, index, token)
        if width:
            best = np.flatnonzero(self.seats[0].beam_rank == 0)
            self.texts.best.update(zip(self.texts.request[best].tolist(), best.tolist(), strict=True))
        for seq in [seq for seq in self._logits if self.seats[0].seqs["slot"][seq] < 0]:
            del self._logits[seq]

    def heard(self) -> I64:
        """(rows,) the sequence whose text each row of the journal has: of beams the best one's."""
        rows = self.journal()
        seqs = np.searchsorted(self.texts.request, rows.request_index) + rows.sample
        if self.settings.beam.width:
            best = self.texts.best
            seqs = np.array([best.get(r, s) for r, s in zip(rows.request_index.tolist(), seqs.tolist(), strict=True)])
        return seqs

    def digests(self) -> list[str]:
        """A hash of the output tokens of every sequence in the journal."""
        generated = self.journal().output_tokens.tolist()
        return [self.texts.digest(seq, n) for seq, n in zip(self.heard().tolist(), generated, strict=True)]


def _check(requests: Requests, settings: EngineSettings) -> None:
    """Raise UsageError on what cannot really run."""
    if requests.present_tokens is not None and requests.present_tokens.any():
        raise UsageError("the measured clock cannot take KV that was computed elsewhere; use a trace without it")
    if settings.cache.state == "warm":
        raise UsageError(
            "cache.state = warm on the measured clock would need the KV of a whole earlier run; "
            "use a first [[phase]] with exclude = true, which really runs"
        )
    if settings.cache.allocation != "paged" or settings.batching == "static":
        raise UsageError("the measured clock runs paged continuous batching; set cache.allocation and batching so")
