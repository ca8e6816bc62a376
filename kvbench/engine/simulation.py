"""The Python face of an engine: run it in slices, read its journal and its counters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from ..core import journal as core_journal
from ..core.errors import KvbenchError
from ..core.journal import Counters
from ..core.requests import I64, NONE, Requests
from ..core.units import NEVER_NS
from ..costs.tables import CostTables
from ..prefix.keys import BlockKeys
from ..scheduler.shadow import VIOLATIONS
from ..scheduler.state import Engine
from ..scheduler.state_columns import (
    ARRIVED,
    BAD_TRANSITION,
    CANCELLED,
    FAILED,
    FINISHED,
    GENERATED,
    NO_FAULT,
    OUT_OF_KV,
    REFUSED,
    SHADOW,
    STATE_NAMES,
    TIMED_OUT,
)
from .attribution import parts_of, tokenize_of
from .build import build_engine
from .flush import Flushes
from .integrity import check_integrity
from .loop import DONE, FAULT, PAUSED, advance
from .probe import settle_slots
from .settings import EngineSettings

_SLICE_STEPS = 20_000
_FEW_STEPS = 16

_STATUS_OF_STATE = {
    FINISHED: core_journal.FINISHED,
    CANCELLED: core_journal.CANCELLED,
    REFUSED: core_journal.REFUSED,
    FAILED: core_journal.FAILED,
    TIMED_OUT: core_journal.TIMED_OUT,
}


@dataclass(frozen=True)
class Admissions:
    """The m sequences of an engine that were ever admitted; of beams all, not only the one that is heard.

    sequence, request   (m,)
    prompt              (m,) tokens
    asked               (m,) 1 = it looked for its prompt in the cache; 0: it waited for that of another (copy on write)
    scheduled_ns, finish_ns   (m,) first admission, end; NEVER = has not ended
    request_of          (sequences,) the request of every sequence
    """

    sequence: I64
    request: I64
    prompt: I64
    asked: I64
    scheduled_ns: I64
    finish_ns: I64
    request_of: I64

    def taken(self, order: I64) -> Admissions:
        """In another order, or some of them."""
        columns = {f.name: getattr(self, f.name)[order] for f in fields(self) if f.name != "request_of"}
        return Admissions(**columns, request_of=self.request_of)


def admissions_of(engine: Engine) -> Admissions:
    """Of an engine in whatever state."""
    q = engine.seqs.read()
    admitted = np.flatnonzero(q["scheduled"] >= 0)
    names = ("request", "prompt", "asked", "scheduled", "finish")
    return Admissions(admitted, *(q[name][admitted] for name in names), q["request"])


class Simulation:
    """One engine on the modelled clock.

    >>> simulation = Simulation(requests, settings, tables)      # doctest: +SKIP
    >>> simulation.run()
    >>> simulation.journal().first_token_ns
    """

    slice_steps = _SLICE_STEPS
    """Steps between two calls of `progress`."""

    def __init__(self, requests: Requests, settings: EngineSettings, tables: CostTables) -> None:
        self.requests = requests
        self.settings = settings
        self.engine: Engine = build_engine(requests, settings, tables)
        self._is_prepared = settings.cache.state == "cold"
        self._flushes = Flushes(requests, settings)
        self._reached_time = False
        self._rows_before: list[int] = []  # of gaps, before each phase that has begun
        self.num_sequences = requests.num_sequences

    def cache_prepared(self, leading: I64) -> None:
        """The cache is in the state of the settings: it has seen these leading blocks of each request, (requests,)."""
        self._is_prepared = True

    def advance(self, until_ns: int = NEVER_NS, max_steps: int = NEVER_NS) -> bool:
        """Run until a time (no step starts at or after it) or for some steps. True when all is done."""
        if not self._is_prepared:  # a cold number must not pass for a warm one
            raise KvbenchError(f"cache.state is {self.settings.cache.state} and nobody has prepared the cache")
        while self._flushes.next_ns < until_ns:
            done = self._advance(self._flushes.next_ns, max_steps)
            if done or not self._reached_time:
                return done
            self._flushes.carry_out(self.engine)
        return self._advance(until_ns, max_steps)

    def _advance(self, until_ns: int, max_steps: int) -> bool:
        if self.settings.check:
            return self._advance_checked(until_ns, max_steps)
        with np.errstate(over="ignore"):  # without jit, the hash mixing wraps around loudly
            status = advance(self.engine, until_ns, max_steps)
        if status == FAULT:
            raise KvbenchError(self.fault())
        self._reached_time = status == PAUSED
        return status == DONE

    def _advance_checked(self, until_ns: int, max_steps: int) -> bool:
        for _ in range(min(max_steps, 1 << 40)):
            with np.errstate(over="ignore"):
                status = advance(self.engine, until_ns, 1)
            if self.engine.fault != NO_FAULT:
                raise KvbenchError(self.fault())
            check_integrity(self.engine)
            if status in (DONE, PAUSED):
                self._reached_time = status == PAUSED
                return status == DONE
        self._reached_time = False
        return False

    def run(self, progress: Callable[[int, int], None] | None = None) -> bool:
        """Run to the end in slices, calling progress(sequences done, all) between them."""
        done = False
        while not done:
            done = self._advance_in_phase()
            if progress is not None:
                progress(int(self.engine.num_done) // max(self.settings.beam.width, 1), self.num_sequences)
        check_integrity(self.engine)
        return True

    def _advance_in_phase(self) -> bool:
        """A slice; where phases are left out of results, one that ends at the start of the next phase.

        What a token waited is told by the time in which it came, to one step, or to some under a closed loop.
        """
        requests, begun = self.requests, len(self._rows_before)
        if not requests.excluded or begun == len(requests.phases):
            return self.advance(NEVER_NS, self.slice_steps)
        first = int(np.argmax(requests.phase == begun))
        if self.settings.closed_loop or requests.after[first] != NONE:
            done = self.advance(NEVER_NS, _FEW_STEPS)
            has_come = bool(self.engine.seqs.state[self.engine.seqs.first[first]] != ARRIVED)
        else:
            done = self.advance(int(requests.arrival_ns[first]), self.slice_steps)
            has_come = done or self._reached_time
        if has_come:
            self._rows_before.append(int(self.engine.journal.rows))
        return done

    def _phase_of_gaps(self) -> NDArray[np.int64] | None:
        """(rows,) where phases are left out of results."""
        if not self._rows_before:
            return None
        rows = np.arange(int(self.engine.journal.rows))
        return np.maximum(np.searchsorted(self._rows_before, rows, side="right") - 1, 0)

    def fault(self) -> str:
        """What made the loop stop, in words."""
        e = self.engine
        if e.fault == BAD_TRANSITION:
            state = STATE_NAMES[e.seqs.state[e.fault_seq]]
            return f"engine fault: sequence {e.fault_seq} left the table of states (now {state})"
        if e.fault == OUT_OF_KV:
            return (
                "out of KV memory: a batch did not get the blocks it was admitted for (the engine would end here); "
                "try scheduler.enable_mixed_chunk=false, more cache.blocks or a greater "
                "scheduler.schedule_conservativeness"
            )
        if e.fault == SHADOW:
            s = e.shadow
            request = int(e.seqs.request[s.by])
            return (
                f"shadow: block {s.block} {VIOLATIONS[s.kind]}; step {e.num_steps}, request {request}, sequence {s.by}"
            )
        return "engine fault: sequences are left and nothing can happen any more"

    def journal(self) -> core_journal.Journal:
        """Rows of everything so far; sequences that have not ended have status PARTIAL."""
        e = self.engine
        settle_slots(e)
        q = e.seqs.read()
        status = np.full(q["state"].size, core_journal.PARTIAL, np.int64)
        for state, name in _STATUS_OF_STATE.items():
            status[q["state"] == state] = name
        first = q["first"]
        generated = q["generated"].copy()
        running = np.flatnonzero(q["slot"] >= 0)
        generated[running] = e.slots.rec[q["slot"][running], GENERATED]
        sample = np.arange(status.size) - first[q["request"]]
        heard = sample == 0 if self.settings.beam.width else slice(None)  # beams give one result
        return core_journal.Journal(
            request_index=q["request"][heard],
            sample=sample[heard],
            status=status[heard],
            arrival_ns=q["arrival"][heard],
            queued_ns=q["queued"][heard],
            scheduled_ns=q["scheduled"][heard],
            first_token_ns=q["first_token"][heard],
            finish_ns=q["finish"][heard],
            cached_tokens=q["cached"][heard],
            output_tokens=generated[heard],
            recomputed_tokens=q["recomputed"][heard],
            preemptions=q["preemptions"][heard],
            itl_gap_ns=e.journal.gap[: e.journal.rows],
            itl_count=e.journal.count[: e.journal.rows],
            steps=e.journal.steps[: e.journal.num_steps],
            parts_ns=parts_of(q, status, self.settings)[heard],
            tokenize_ns=tokenize_of(q, status, self.settings)[heard],
            itl_phase=self._phase_of_gaps(),
        )

    def admissions(self) -> Admissions:
        """Sequences that were admitted so far."""
        return admissions_of(self.engine)

    def block_keys(self) -> BlockKeys:
        """Keys of the whole blocks of every sequence."""
        return self.engine.block_keys

    def counters(self) -> Counters:
        """Totals so far."""
        e = self.engine.read()
        pool = self.engine.pool.read()
        used_us, busy_us = e["used_us"], max(e["busy_us"], 1)
        block_us = max(used_us * self.settings.block_tokens, 1)
        internal_us = e["waste_us"] if self.settings.cache.allocation == "paged" else e["internal_us"]
        return Counters(
            end_ns=e["now"],
            num_steps=e["num_steps"],
            decode_steps=e["decode_steps"],
            prefill_steps=e["prefill_steps"],
            prefill_tokens=e["sum_prefill_tokens"],
            decode_tokens=e["sum_decode_tokens"],
            matched_tokens=e["matched_tokens"],
            admitted_prompt_tokens=e["admitted_tokens"],
            recomputed_tokens=e["recomputed_tokens"],
            preemptions=e["preemptions"],
            evicted_blocks=pool["evicted"],
            inserted_blocks=self.engine.tree.inserted + self.engine.hashes.registered,
            used_blocks_peak=e["used_peak"],
            used_blocks_mean=used_us / busy_us,
            tail_waste_tokens_mean=e["waste_us"] / busy_us,
            tail_waste_share=e["waste_us"] / block_us,
            metadata_bytes=metadata_bytes(self.engine),
            num_blocks=pool["num_blocks"],
            path="calendar" if self.engine.calendar.active else "step",
            busy_ns=e["busy_ns"],
            host_ns=e["host_ns"],
            exposed_host_ns=e["exposed_ns"],
            device_ns=e["device_ns"],
            backup_blocks=self.engine.backups.moved,
            backup_ns=self.engine.backups.busy_ns,
            unwritten_hits=self.engine.shadow.unwritten_hits,
            saved_blocks_mean=(e["table_us"] - used_us) / busy_us,
            saved_blocks_share=(e["table_us"] - used_us) / max(e["table_us"], 1),
            copied_blocks=e["copied_blocks"],
            copied_bytes=e["copied_blocks"] * self.settings.cache.block_bytes,
            kv_tokens_mean=(used_us * self.settings.block_tokens - e["waste_us"]) / busy_us,
            kv_reserved_mean=(e["waste_us"] - internal_us) / busy_us,
            kv_internal_mean=internal_us / busy_us,
            kv_external_mean=e["external_us"] / busy_us,
        )


def metadata_bytes(engine: Engine) -> int:
    """Bytes of the structures that describe blocks: records, free queue, prefix cache, used block tables."""
    total = 0
    for part in (engine.pool, engine.tree, engine.hashes, engine.slots):
        total += sum(v.nbytes for v in part.read().values() if isinstance(v, np.ndarray))
    return total
