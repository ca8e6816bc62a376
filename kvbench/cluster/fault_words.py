"""Why the loop stopped, in words."""

from __future__ import annotations

from collections.abc import Sequence

from ..scheduler.shadow import VIOLATIONS
from ..scheduler.state import Engine
from ..scheduler.state_columns import BAD_TRANSITION, NO_FAULT, OUT_OF_KV, SHADOW, STATE_NAMES


def words_of(engines: Sequence[Engine]) -> str:
    """One line, of the first engine that has a fault; else what it means that none has."""
    e = next((e for e in engines if e.fault != NO_FAULT), engines[0])
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
        return f"shadow: block {s.block} {VIOLATIONS[s.kind]}; step {e.num_steps}, request {request}, sequence {s.by}"
    return "engine fault: sequences are left and nothing can happen any more"
