"""The queue of a push, on either side: sequences that wait for the other side, in order of their arrival."""

from __future__ import annotations

from ..core.jit import entry, inline, jit
from ..scheduler.side import TIMED_OUT_CONNECTION, UNCONNECTED
from ..scheduler.state import set_state
from ..scheduler.state_columns import BOOTSTRAPPING, CANCELLED, FAILED, TIMED_OUT


@jit
def enter(e, seq):
    """A sequence is given to this engine."""
    side = e.side
    side.queue[side.num_queued] = seq
    side.num_queued += 1
    side.connection[seq] = UNCONNECTED
    set_state(e, seq, BOOTSTRAPPING)


@entry
def connect(e, seq, how):
    """The other side has answered, or never will (see side.UNCONNECTED). False: too late."""
    side = e.side
    if e.seqs.state[seq] != BOOTSTRAPPING or side.connection[seq] != UNCONNECTED:
        return False
    side.connection[seq] = how
    side.num_ended += 1
    return True


@inline
def keep_from(side, at, kept):
    """What the walk did not reach, from place `at` on, follows the `kept` that it passed over."""
    if at == kept:
        return
    queue = side.queue
    for i in range(at, side.num_queued):
        queue[kept + i - at] = queue[i]
    side.num_queued += kept - at


@inline
def end_of(e, seq):
    """How a sequence ends whose connection is broken."""
    if e.seqs.flagged[seq] == 1:
        return CANCELLED
    return TIMED_OUT if e.side.connection[seq] == TIMED_OUT_CONNECTION else FAILED
