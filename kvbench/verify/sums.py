"""Whether the numbers of a run that is over add up: nothing is held, and every counter is the sum of its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..client.clients import PLACE_FREE
from ..cluster.simulation import Simulation
from ..core.journal import CANCELLED, FINISHED, PARTIAL, REFUSED, STEP_COLUMNS
from ..engine.observe import fields_of
from ..kernels.event_heap import KIND
from ..scheduler.state_columns import BLOCKS, COMPUTED, KEPT, PHASE


def missing_sum(simulation: Simulation) -> str:
    """The first sum that does not come out, as a sentence; "" when all do."""
    for what, kept, counted in _sums(simulation):
        if kept != counted:
            return f"{what}: kept {kept}, counted {counted}"
    return _impossible_row(simulation)


def _sums(simulation: Simulation) -> list[tuple[str, int, int]]:
    e = fields_of(simulation.engine)
    pool, tree, slots = (fields_of(e[name]) for name in ("pool", "tree", "slots"))
    clients = fields_of(simulation.world.clients)
    heap = fields_of(clients["events"])
    rows, counters = simulation.journal(), simulation.counters()
    column = {name: int(rows.steps[:, i].sum()) for i, name in enumerate(STEP_COLUMNS)}
    tokens_out = rows.output_tokens
    scheduled = rows.scheduled_ns >= 0
    prompts = simulation.requests.prompt_tokens[rows.request_index]
    admitted = int(prompts[scheduled].sum())
    if simulation.settings.cache.copy_on_write:  # a sample that finds a sibling running forks, and brings no prompt
        once = int(simulation.requests.prompt_tokens[np.unique(rows.request_index[scheduled])].sum())
        admitted = min(max(counters.admitted_prompt_tokens, once), admitted)
    kept = _kept(slots)
    held = sorted({int(b) for slot in kept for b in slots["table"][slot, : slots["rec"][slot, BLOCKS]]})
    return [
        ("blocks that are free or cached", pool["num_free"] + tree["evictable"], pool["num_blocks"] - len(held)),
        ("blocks that are locked", tree["protected"], 0),
        ("blocks in tables", e["table_blocks"], int(slots["rec"][kept, BLOCKS].sum())),
        ("tokens in tables", e["context"], int(slots["rec"][kept, COMPUTED].sum())),
        ("slots with memory", slots["holders"], len(kept)),
        ("sequences that wait", e["num_waiting"], 0),
        ("sequences that are not over", int((rows.status == PARTIAL).sum()), 0),
        # a client that gets its last token after detokenising is told by an event that nobody waits for any more
        ("sequences in flight", clients["in_flight"], int((heap["rows"][: heap["size"], KIND] == PLACE_FREE).sum())),
        ("hit tokens", counters.matched_tokens, int(rows.cached_tokens.sum())),
        ("admitted prompt tokens", counters.admitted_prompt_tokens, admitted),
        ("recomputed tokens", counters.recomputed_tokens, int(rows.recomputed_tokens.sum())),
        ("preemptions", counters.preemptions, int(rows.preemptions.sum())),
        # a plan that comes out empty has no row: what it preempted or evicted is in the counters alone
        ("preemptions, all steps' included", counters.preemptions, max(counters.preemptions, column["preempted"])),
        (
            "evictions, all steps' included",
            counters.evicted_blocks,
            max(counters.evicted_blocks, column["evicted_blocks"]),
        ),
        ("prefill tokens of steps", column["prefill_tokens"], counters.prefill_tokens),
        ("decode tokens of steps", column["decode_seqs"], counters.decode_tokens),
        ("time of steps", column["duration_ns"], counters.busy_ns),
        ("steps", rows.steps.shape[0], counters.num_steps),
        ("gaps between tokens", int(rows.itl_count.sum()), int((tokens_out - 1)[tokens_out > 0].sum())),
    ]


def _kept(slots: dict[str, Any]) -> list[int]:
    """Copy on write: slots whose table waits for turns that were cancelled before they came."""
    return [int(slot) for slot in np.flatnonzero(slots["rec"][:, PHASE] == KEPT)]


def _impossible_row(simulation: Simulation) -> str:
    rows, settings = simulation.journal(), simulation.settings
    prompt = simulation.requests.prompt_tokens[rows.request_index]
    room = simulation.arrivals.output[rows.request_index]
    finished, bt = rows.status == FINISHED, settings.block_tokens
    bt = 1 if settings.cache.copy_on_write else bt  # a turn forks at a token
    bad = {
        "hits more than the whole blocks before its last prompt token": rows.cached_tokens > (prompt - 1) // bt * bt,
        "hits a part of a block": rows.cached_tokens % bt != 0,
        "has more output than it may": rows.output_tokens > room,
        "finished without its output": finished & (rows.output_tokens < room),
        "finished and was never scheduled": finished & (rows.scheduled_ns < 0),
        "was refused and has run": (rows.status == REFUSED) & (rows.scheduled_ns >= 0),
        "has its first token before it was scheduled": (rows.first_token_ns >= 0)
        & (rows.first_token_ns < rows.scheduled_ns),
        "ends before its first token": (rows.status != CANCELLED) & (rows.first_token_ns > rows.finish_ns),
    }
    for what, rows_that in bad.items():
        if rows_that.any():
            return f"sequence {int(np.argmax(rows_that))} {what}"
    return _uncomputed(simulation)


def _uncomputed(simulation: Simulation) -> str:
    """Tokens that were computed against prompts, outputs and what was computed again, less the hits.

    Equal when nobody was preempted and all finished. Else less may have been computed: who comes back may hit what
    others have computed meanwhile, and who is cancelled leaves tokens out. More never: a hit that is no hit, or is
    counted twice, shows here.
    """
    rows, counters = simulation.journal(), simulation.counters()
    prompt = simulation.requests.prompt_tokens[rows.request_index]
    ran, finished = rows.scheduled_ns >= 0, rows.status == FINISHED
    need = int((prompt + rows.output_tokens - finished - rows.cached_tokens)[ran].sum()) + counters.recomputed_tokens
    done = counters.prefill_tokens + counters.decode_tokens
    if simulation.settings.overlap:  # a step too many for each end, and for each token that a preemption dropped
        return "" if done <= need + ran.sum() + counters.preemptions else f"{done} tokens were computed, {need} needed"
    exact = counters.preemptions == 0 and not simulation.settings.cache.copy_on_write and finished[ran].all()
    if done > need or (exact and done < need):
        return f"{done} tokens were computed; prompts, outputs and recomputation, less the hits, are {need}"
    return ""
