"""The request table: what a workload asks for, as arrays. Written by `workload`, read by everything else.

A prompt is a list of segments. A segment is a run of a *virtual stream* (stream, start, length), or a run
of explicit token ids (stream EXPLICIT, start = offset into `token_ids`). A virtual token's identity is
(stream, index), never a value; cutting a segment in two does not change it. What a request generates is a
virtual stream of its own, or explicit ids, so that a later turn can hold it in its prompt.

A request with n samples is n sequences; block tables, lengths and journal rows belong to sequences.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError

I64 = NDArray[np.int64]

EXPLICIT = 0
"""The stream of explicit token ids; virtual streams are numbered from 1."""

NONE = -1
"""No predecessor, no cancel time, no session."""

MAX_STREAM = 1 << 36
MAX_STREAM_TOKENS = 1 << 26
"""A stream index and an offset in it share one int64 block key (see prefix.keys)."""


@dataclass(frozen=True)
class Requests:
    """n requests in order of intended arrival; later turns of a session come after their predecessor.

    arrival_ns      (n,) intended arrival; for a request with a predecessor it is not used (0)
    prompt_tokens   (n,) >= 1
    output_tokens   (n,) what the executor will produce for each sample; 0 is refused at arrival
    max_tokens      (n,) what the scheduler is told
    samples         (n,) sequences of this request, >= 1
    session_id      (n,) NONE outside a session
    turn            (n,) position in the session, from 0
    after           (n,) index of the predecessor, NONE if it arrives by itself
    think_ns        (n,) from the predecessor's end to the arrival
    tenant          (n,) index into tenants
    namespace       (n,) index into namespaces; two namespaces never share a block
    priority        (n,) smaller is more urgent
    phase           (n,) index into phases
    cancel_ns       (n,) after its arrival, NONE = never
    output_stream   (n,) stream of the first sample's output (sample k: + k); EXPLICIT = token_ids
    output_start    (n,) offset into token_ids when output_stream is EXPLICIT, else 0
    segment_offset  (n + 1,) request i owns segments [offset[i], offset[i + 1])
    segment_stream, segment_start, segment_length   (segments,) the prompt's pieces in order
    token_ids       (ids,) explicit ids
    present_tokens  (n,) leading tokens whose KV comes with the request (computed elsewhere, sent here); they are
                    installed, not computed, and are no cache hits. None = no request brings any
    joins           (n,) the request whose successors wait for this one too (parallel calls), NONE = for itself alone.
                    None = there are none
    flush_ns, flush_namespace   (flushes,) ascending times at which a namespace is emptied. None = there are none
    """

    arrival_ns: I64
    prompt_tokens: I64
    output_tokens: I64
    max_tokens: I64
    samples: I64
    session_id: I64
    turn: I64
    after: I64
    think_ns: I64
    tenant: I64
    namespace: I64
    priority: I64
    phase: I64
    cancel_ns: I64
    output_stream: I64
    output_start: I64
    segment_offset: I64
    segment_stream: I64
    segment_start: I64
    segment_length: I64
    token_ids: I64
    present_tokens: I64 | None = None
    joins: I64 | None = None
    flush_ns: I64 | None = None
    flush_namespace: I64 | None = None
    tenants: tuple[str, ...] = ("default",)
    namespaces: tuple[str, ...] = ("",)
    phases: tuple[str, ...] = ("main",)
    excluded: tuple[str, ...] = ()
    """Phases that are left out of results."""

    block_hint: int = 0
    """Tokens per block of the trace the requests came from; 0 when they did not come from one."""

    notes: tuple[str, ...] = field(default=())
    """One line each on what the workload did to its input (rows skipped, jitter added)."""

    def __len__(self) -> int:
        return int(self.arrival_ns.size)

    @property
    def num_sequences(self) -> int:
        return int(self.samples.sum())

    def is_excluded(self) -> NDArray[np.bool_]:
        """(n,) whether a request belongs to a phase that is left out of results."""
        return np.array([name in self.excluded for name in self.phases])[self.phase]

    def fingerprint(self) -> str:
        """sha256 over every array and name: equal fingerprints are equal workloads."""
        h = hashlib.sha256()
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray):
                h.update(f.name.encode())
                h.update(np.ascontiguousarray(value).tobytes())
        h.update(repr((self.tenants, self.namespaces, self.phases)).encode())
        return h.hexdigest()

    def check(self) -> None:
        """Raise UsageError on a table that no engine could run. Says which request and why."""
        n = len(self)
        if n == 0:
            raise UsageError("the workload has no requests")
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, np.ndarray) and value.dtype != np.int64:
                raise UsageError(f"requests.{f.name} must be int64, is {value.dtype}")
        _first_bad(self.prompt_tokens < 1, "has an empty prompt", self.prompt_tokens)
        _first_bad(self.output_tokens < 0, "has negative output tokens", self.output_tokens)
        _first_bad(self.samples < 1, "has fewer than one sample", self.samples)
        _first_bad(self.arrival_ns < 0, "arrives before t = 0", self.arrival_ns)
        _first_bad(self.after >= np.arange(n), "comes before its predecessor", self.after)
        if self.present_tokens is not None:
            wrong = (self.present_tokens < 0) | (self.present_tokens >= self.prompt_tokens)
            _first_bad(wrong, "brings KV for none or all of its prompt", self.present_tokens)
        if self.joins is not None:
            lead = np.where(self.joins == NONE, np.arange(n), self.joins)
            _first_bad(lead[lead] != lead, "joins a request that joins another one", self.joins)
            waited = np.where(self.after == NONE, np.arange(n), self.after)
            alone = (self.after == NONE) | (self.joins[waited] == NONE)
            _first_bad(~alone, "waits for one call of several; it has to wait for the first", self.after)
        if self.flush_ns is not None and np.any(np.diff(self.flush_ns, prepend=0) < 0):
            raise UsageError("flushes are not in order of time")
        _first_bad(self.segment_length < 1, "is an empty segment", self.segment_length)
        if self.segment_offset.size != n + 1 or self.segment_offset[-1] != self.segment_length.size:
            raise UsageError("segment_offset does not cover the segments")
        covered = np.add.reduceat(self.segment_length, self.segment_offset[:-1])
        _first_bad(covered != self.prompt_tokens, "has segments that do not cover its prompt", covered)
        free = self.after == NONE
        if np.any(np.diff(self.arrival_ns[free]) < 0):
            raise UsageError("requests are not in order of arrival; sort them by time first")


def _first_bad(bad: NDArray[np.bool_], what: str, values: I64) -> None:
    if np.any(bad):
        i = int(np.argmax(bad))
        raise UsageError(f"request {i} {what} ({int(values[i])})")
