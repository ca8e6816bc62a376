"""What an engine of a prefill / decode pair keeps beside its lists: sequences that hold memory and do not run.

    PARKED    prefill: computed, waiting for somebody to have read it, or for its pages to have arrived
    LOADING   decode: memory for KV that is on its way; LOADED, LOST: it has arrived, or never will
    DRAINS    over, while something may still touch its memory

Of an engine that does both it is empty, and nothing here is compiled for it.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import struct
from .mail import Mail, make_mail

# Roles.
BOTH, PREFILL, DECODE = (np.int64(i) for i in range(3))
ROLES = {"both": BOTH, "prefill": PREFILL, "decode": DECODE}

# Kinds of what an engine tells its pair (Side.outbox).
COMPUTED_PROMPT, CHUNK, MEMORY, GIVEN_UP = np.arange(4)
# COMPUTED_PROMPT  prefill: a sequence is parked. CHUNK: a part of a prompt is computed, the rest follows
# MEMORY           decode: a sequence has memory, the transfer may begin. GIVEN_UP: it ended before it had any

# Connection of a sequence, under push: as its engine has heard.
UNCONNECTED, CONNECTED, BROKEN, TIMED_OUT_CONNECTION = (np.int64(i) for i in range(4))

# How a read or a transfer ended: typed, since a literal would compile a callee of its own.
WENT_WELL, WENT_WRONG = np.bool_(True), np.bool_(False)


@struct
class Side:
    """n sequences, s slots.

    role          BOTH, PREFILL, DECODE
    epoch         how often the engine has died: what was under way for an earlier life of it is not its own
    holding       (s,) decode: slots that have memory and do not run, in the order in which they are looked at
    num_holding   of them
    num_ended     things that the next step has to look at though nobody runs or waits
    outbox        what the other side has to know, in order
    queue, num_queued   push: (n,) sequences that wait for the other side or for memory, before the waiting list
    connection    push: (n,) see UNCONNECTED; seen: (n,) decode: 1 = its queue has noticed that it is connected
    unseen        push: of the queue, those that have not
    retracted, num_retracted   push, decode: (s,) sequences whose KV lies in host memory
    marks, next_mark, num_marks   push: (m,) ring of places for first tokens, and how many are free
    mark          push: (n,) the place that a sequence has
    fails         pull, decode: a read that fails ends its sequence; else its prompt is computed here
    reserved      push, decode: tokens that stay free for every sequence that decodes or will
    rows          push, decode: sequences that hold memory at most
    polls, poll_interval   push, decode: its queues are looked at in each such step
    """

    role: "i8"
    epoch: "i8"
    holding: "i8[::1]"
    num_holding: "i8"
    num_ended: "i8"
    outbox: "Mail"
    queue: "i8[::1]"
    num_queued: "i8"
    connection: "i8[::1]"
    seen: "i8[::1]"
    unseen: "i8"
    retracted: "i8[::1]"
    num_retracted: "i8"
    marks: "i8[::1]"
    next_mark: "i8"
    num_marks: "i8"
    mark: "i8[::1]"
    fails: "b1"
    reserved: "i8"
    rows: "i8"
    polls: "i8"
    poll_interval: "i8"


def make_side(
    role: str,
    num_sequences: int,
    num_slots: int,
    *,
    places: int,
    rows: int,
    fails: bool,
    reserved: int,
    poll_interval: int,
) -> Side:
    """places   of the running batch; there are twice as many for first tokens."""
    n, slots, marks = (num_sequences, num_slots, 2 * places) if role != "both" else (0, 0, 0)
    return Side(
        ROLES[role],
        0,
        np.zeros(slots, np.int64),
        0,
        0,
        make_mail(),
        np.zeros(n, np.int64),
        0,
        np.zeros(n, np.int64),
        np.zeros(n, np.int64),
        0,
        np.zeros(slots, np.int64),
        0,
        np.arange(marks),
        0,
        marks,
        np.zeros(n, np.int64),
        fails,
        reserved,
        rows,
        0,
        poll_interval,
    )
