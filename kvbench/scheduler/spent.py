"""Where the time of each sequence goes, exactly and without a loop over the sequences of a step.

The engine keeps two clocks, in ns, that move at the end of a step (`spend`):

    step_clock     time in which a step ran
    decode_clock   of it, what the decodes of those steps would have taken without the prefills in them

A sequence reads them where its phase changes: `start` subtracts a clock from its column, `stop` adds it, so that the
column holds the difference; while a clock runs for it, the column is far below 0, whatever it held before: a sequence
may come to an engine that has run for less time than was spent on it elsewhere. What no column holds (running, but no
step ran) is the rest of its life. Columns of Sequences.spent:

    PREFILL   whole steps that computed a part of its prompt
    STEPS     all steps between admission and end
    DECODE    the decode clock since its first token
    AGAIN     from the loss of its memory until it has computed it again (its next token of a step)
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit
from .state_columns import IN_PREFILL, PHASE, PLAN_SLOT, SEQ

PREFILL, STEPS, DECODE, AGAIN = range(4)
NUM_SPENT = 4
_RUNS = np.int64(1 << 61)
"""Far below all times: what is less than 0 runs."""

# Columns and kinds of Engine.flight, a row for each of the step on the device (see overlapped).
FLIGHT_SLOT, FLIGHT_SEQ, FLIGHT_DOES = range(3)
CHUNK, FIRST, NEXT_TOKEN, NOTHING = range(4)
# CHUNK: a part of a prefill; FIRST: the last part, a token comes out; NEXT_TOKEN: a decode; NOTHING: for nobody


@inline
def _start(spent, seq, column, clock):
    if spent[seq, column] >= 0:
        spent[seq, column] -= clock + _RUNS


@inline
def _stop(spent, seq, column, clock):
    if spent[seq, column] < 0:
        spent[seq, column] += clock + _RUNS


@jit
def note_admission(e, seq):
    """It has a place; after a preemption, its time still belongs to that."""
    if e.seqs.spent[seq, AGAIN] >= 0:
        _start(e.seqs.spent, seq, STEPS, e.step_clock)


@jit
def note_decode(e, seq):
    """Its prompt (or what it had lost) is computed."""
    spent = e.seqs.spent
    _stop(spent, seq, AGAIN, e.now)
    _start(spent, seq, STEPS, e.step_clock)
    _start(spent, seq, DECODE, e.decode_clock)


@jit
def note_preemption(e, seq):
    """Its memory is gone."""
    _stop(e.seqs.spent, seq, STEPS, e.step_clock)
    _stop(e.seqs.spent, seq, DECODE, e.decode_clock)
    _start(e.seqs.spent, seq, AGAIN, e.now)


@jit
def note_end(e, seq):
    """It is over, however; called again, it changes nothing."""
    _stop(e.seqs.spent, seq, STEPS, e.step_clock)
    _stop(e.seqs.spent, seq, DECODE, e.decode_clock)
    _stop(e.seqs.spent, seq, AGAIN, e.now)


@jit
def note_given_up(spent, seq, now):
    """Nobody computes again what it has lost."""
    _stop(spent, seq, AGAIN, now)


@inline
def scaled(share, modelled, measured):
    """The part of a measured time that `share` is of the modelled one (0 and NEVER_NS: none and all, stay)."""
    if share <= 0 or share >= modelled:
        return share
    return max(np.int64(share / modelled * measured), 1)


@jit
def spend(e, elapsed):
    """`elapsed` ns have gone by with the planned step, or with the one on the device; its results are not in yet."""
    in_flight = e.num_flight > 0
    prefilled_ns = e.flight_prefill_ns if in_flight else e.step_prefill_ns
    e.step_clock += elapsed
    e.decode_clock += elapsed - max(min(prefilled_ns, elapsed), 0)
    e.flight_prefill_ns = e.step_prefill_ns
    if prefilled_ns == 0:
        return
    spent = e.seqs.spent
    for row in range(e.num_flight):
        seq = e.flight[row, FLIGHT_SEQ]
        if e.flight[row, FLIGHT_DOES] <= FIRST and spent[seq, STEPS] < 0:
            spent[seq, PREFILL] += elapsed
    for row in range(0 if in_flight else e.num_plan):
        slot = e.plan[row, PLAN_SLOT]
        seq = e.slots.rec[slot, SEQ]
        if e.slots.rec[slot, PHASE] == IN_PREFILL and spent[seq, STEPS] < 0:
            spent[seq, PREFILL] += elapsed
