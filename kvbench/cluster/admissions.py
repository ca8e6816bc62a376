"""Who was ever admitted, and when: what a replay without a clock and a bound on hits look at."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ..core.requests import I64
from ..scheduler.state import Engine


@dataclass(frozen=True)
class Admissions:
    """The m sequences of an engine that were ever admitted; of beams all, not only the one that is heard.

    sequence, request   (m,)
    prompt              (m,) tokens
    asked               (m,) 1 = it looked for its prompt in the cache; 0: it waited for that of another (copy on write)
    scheduled_ns, finish_ns   (m,) first admission, end; NEVER = has not ended
    engine              (m,) that has it; of a request that was lost and sent again the last one
    request_of          (sequences,) the request of every sequence
    """

    sequence: I64
    request: I64
    prompt: I64
    asked: I64
    scheduled_ns: I64
    finish_ns: I64
    engine: I64
    request_of: I64

    def taken(self, order: I64) -> Admissions:
        """In another order, or some of them."""
        columns = {f.name: getattr(self, f.name)[order] for f in fields(self) if f.name != "request_of"}
        return Admissions(**columns, request_of=self.request_of)


def admissions_of(engine: Engine) -> Admissions:
    """Of an engine in whatever state."""
    q = engine.seqs.read()
    admitted = np.flatnonzero(q["scheduled"] >= 0)
    names = ("request", "prompt", "asked", "scheduled", "finish", "engine")
    return Admissions(admitted, *(q[name][admitted] for name in names), q["request"])
