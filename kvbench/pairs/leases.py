"""Leases: how long a prefill engine keeps what somebody has said to read.

    begin   a prompt is computed: its lease runs from the end of that step
    beat    the decode side still wants it
    read    it has been read; too late when its lease is over already
    expire  its lease is over: nobody is asked

A heartbeat only touches leases that run, and never shortens one.

source: vLLM 0.33, NIXL connector.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import entry, struct

NO_LEASE = np.int64(-1)


@struct
class Leases:
    """Times in ns.

    ends        (sequences,) when each is over; NO_LEASE: there is none
    duration    from the end of the prefill. extension: from a heartbeat. interval: between two heartbeats; < 0: none
    late        reads that came after their lease
    """

    ends: "i8[::1]"
    duration: "i8"
    extension: "i8"
    interval: "i8"
    late: "i8"


def make_leases(num_sequences: int, duration_ns: int, interval_ns: int = 0) -> Leases:
    """interval_ns   0 = a sixth of the lease, less: no heartbeats"""
    ends = np.full(num_sequences, NO_LEASE, np.int64)
    return Leases(ends, duration_ns, 2 * duration_ns // 3, interval_ns or max(duration_ns // 6, 1), 0)


@entry
def begin(leases, seq, computed_ns):
    leases.ends[seq] = computed_ns + leases.duration


@entry
def beat(leases, seq, now):
    if leases.ends[seq] != NO_LEASE:
        leases.ends[seq] = max(leases.ends[seq], now + leases.extension)


@entry
def read(leases, seq):
    """False: too late."""
    if leases.ends[seq] == NO_LEASE:
        leases.late += 1
        return False
    leases.ends[seq] = NO_LEASE
    return True


@entry
def end(leases, seq):
    """Nobody wants it any more."""
    leases.ends[seq] = NO_LEASE


@entry
def runs(leases, seq):
    return leases.ends[seq] != NO_LEASE


@entry
def expire(leases, seq, now):
    """True when it is over now, and gone."""
    if leases.ends[seq] == NO_LEASE or leases.ends[seq] > now:
        return False
    leases.ends[seq] = NO_LEASE
    return True
