"""Instances of several engines: the data-parallel ranks of one deployment, which step together.

Every layer of a mixture of experts exchanges tokens between all ranks, so a step lasts as long as that of the slowest
rank, a rank without work runs a dummy step, and all are padded to the widest batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..core.errors import UsageError
from ..core.jit import inline, jit, struct
from ..scheduler.mail import ACCEPT

LEAST_WAITING, ROUND_ROBIN, SHORTEST_QUEUE, FEWEST_TOKENS = range(4)
DEALS = ("least-waiting", "round-robin", "shortest-queue", "fewest-tokens")
"""How an instance deals a request to one of its ranks; in the order of the numbers above.

least-waiting   waiting x 4 + running, the first of equals (vLLM's balancer)
round-robin     SGLang's default; shortest-queue, fewest-tokens: its other rules
"""

_WAITING_WEIGHT = 4
NUM_TERMS = 4
_OF_INSTANCES = "turn is_planned now together_ns pause_ns steps step_ns".split()


@struct
class Instances:
    """n engines in i instances.

    first        (i + 1,) the ranks of an instance are engines first .. next first
    instance     (n,) the instance of each engine
    deal         see DEALS; turn: (i,) requests dealt so far
    balance      no rank admits while one is full (vllm-ascend)
    statuses     (n,) what each rank has planned in the step at hand; IDLE and EMPTY: it runs a dummy step
    is_planned   (i,) 1 = planned, not started
    asks         Python adds to the queries of the ranks between plan and start
    own_ns       (n,) how long the step at hand is for each rank
    now          (i,) begin of the step at hand. tokens: (n, 2) prefill and decode tokens of each rank in it
    terms        (n, 4) where asks: EXPERT_LOAD_MAX, ACTIVE_EXPERTS, DISPATCH_BYTES, EXCHANGE_NS of the ranks' queries
    together_ns  (i,) where asks: what all ranks wait for in experts and exchanges, whose share it is
    pause_ns     (i,) where asks: time before the step in which nobody computes
    experts_ns   (n,) the part of a rank's step that is its own experts and exchanges
    wait_ns      (n,) time in which a rank waited for the slowest
    busy_ns      (n,) its own steps, dummies among them; dummy_ns: (n,) these alone
    dummy_steps  (n,)
    steps        (i,); step_ns: (i,) their time
    """

    first: "i8[::1]"
    instance: "i8[::1]"
    deal: "i8"
    turn: "i8[::1]"
    balance: "b1"
    statuses: "i8[::1]"
    is_planned: "i8[::1]"
    asks: "b1"
    own_ns: "i8[::1]"
    now: "i8[::1]"
    tokens: "i8[:,::1]"
    terms: "f8[:,::1]"
    together_ns: "i8[::1]"
    pause_ns: "i8[::1]"
    experts_ns: "i8[::1]"
    wait_ns: "i8[::1]"
    busy_ns: "i8[::1]"
    dummy_ns: "i8[::1]"
    dummy_steps: "i8[::1]"
    steps: "i8[::1]"
    step_ns: "i8[::1]"


def make_instances(ranks: Sequence[int], deal: str, asks: bool = False, balance: bool = False) -> Instances:
    """At t = 0. ranks: of each instance. UsageError: a rule that nobody knows."""
    if deal not in DEALS:
        raise UsageError(f"unknown rule {deal!r} for dealing requests to ranks: one of {', '.join(DEALS)}")
    first = np.concatenate([[0], np.cumsum(ranks)]).astype(np.int64)
    i, n = len(ranks), int(first[-1])
    shapes = {"tokens": (n, 2), "terms": (n, NUM_TERMS)} | dict.fromkeys(_OF_INSTANCES, (i,))
    values = {
        "first": first,
        "instance": np.repeat(np.arange(i), np.array(ranks)),
        "deal": DEALS.index(deal),
        "asks": asks,
        "balance": balance,
    }
    for name in Instances.fields:
        if name not in values:
            values[name] = np.zeros(shapes.get(name, (n,)), np.float64 if name == "terms" else np.int64)
    return Instances(*(values[name] for name in Instances.fields))


@jit
def deal_to(w, s, instance):
    """The engine of an instance that gets the next request."""
    start, stop = s.first[instance], s.first[instance + 1]
    turn = s.turn[instance]
    s.turn[instance] = turn + 1
    if s.deal == ROUND_ROBIN:
        return start + turn % (stop - start)
    best, least = start, np.int64(-1)
    for k in range(start, stop):
        load = _load(w.engines[k], s.deal)
        if least < 0 or load < least:
            best, least = k, load
    return best


@inline
def _load(e, deal):
    """What an instance compares its ranks by, what is on its way to them included."""
    rows, seqs = e.inbox.rows, e.seqs
    coming, tokens = np.int64(0), np.int64(0)
    for i in range(e.inbox.next, e.inbox.num):
        if rows[i, 0] == ACCEPT:
            coming += 1
            tokens += seqs.prompt[rows[i, 1]]
    waiting, running = e.num_waiting + coming, e.slots.running
    if deal == LEAST_WAITING:
        return waiting * _WAITING_WEIGHT + running
    if deal == SHORTEST_QUEUE:
        return waiting + running
    seq = e.queue_head
    while seq >= 0:
        tokens += seqs.prompt[seq]
        seq = seqs.queue_next[seq]
    return tokens + e.context
