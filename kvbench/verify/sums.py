"""Whether the numbers of a run that is over add up: nothing is held, and every counter is the sum of its rows."""

from __future__ import annotations

import numpy as np

from ..client.clients import PLACE_FREE
from ..cluster.simulation import Simulation
from ..core.journal import CANCELLED, FAILED, FINISHED, PARTIAL, REFUSED, STEP_COLUMNS
from ..engine.observe import fields_of
from ..kernels.event_heap import KIND
from ..routing.router import HELD_TOKENS, IN_FLIGHT, PENDING_TOKENS
from ..scheduler.state import Engine
from ..scheduler.state_columns import BLOCKS, COMPUTED, KEPT, PHASE


def missing_sum(simulation: Simulation) -> str:
    """The first sum that does not come out, as a sentence; "" when all do."""
    for what, kept, counted in _sums(simulation):
        if kept != counted:
            return f"{what}: kept {kept}, counted {counted}"
    return _impossible_row(simulation)


def _sums(simulation: Simulation) -> list[tuple[str, int, int]]:
    engines = [_Held(engine) for engine in simulation.engines]
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
    return [
        *(row for engine in engines for row in engine.sums()),
        *(_of_router(simulation) if simulation.fleet.router else ()),
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


class _Held:
    """What an engine still holds when all is over: with copy on write tables that wait for turns which never came."""

    def __init__(self, engine: Engine) -> None:
        self._e = fields_of(engine)
        self._pool, self._tree, self._slots = (fields_of(self._e[name]) for name in ("pool", "tree", "slots"))
        self._kept = [int(slot) for slot in np.flatnonzero(self._slots["rec"][:, PHASE] == KEPT)]

    def sums(self) -> list[tuple[str, int, int]]:
        e, pool, rec, kept = self._e, self._pool, self._slots["rec"], self._kept
        held = {int(b) for slot in kept for b in self._slots["table"][slot, : rec[slot, BLOCKS]]}
        return [
            (
                "blocks that are free or cached",
                pool["num_free"] + self._tree["evictable"],
                pool["num_blocks"] - len(held),
            ),
            ("blocks that are locked", self._tree["protected"], 0),
            ("blocks in tables", e["table_blocks"], int(rec[kept, BLOCKS].sum())),
            ("tokens in tables", e["context"], int(rec[kept, COMPUTED].sum())),
            ("slots with memory", self._slots["holders"], len(kept)),
            ("sequences that wait", e["num_waiting"], 0),
            ("sequences on their way", e["coming"], 0),
            ("tokens on their way", e["coming_tokens"], 0),
        ]


def _of_router(simulation: Simulation) -> list[tuple[str, int, int]]:
    """A router whose requests are all over believes nothing under way, and nobody holds blocks for them."""
    router = fields_of(simulation.world.router)
    under_way = router["load"][:, [IN_FLIGHT, PENDING_TOKENS, HELD_TOKENS]]
    return [
        ("loads that the router counts", int(np.abs(under_way).sum()), 0),
        ("blocks that live requests hold, as the router counts", int(fields_of(router["live"])["held"].sum()), 0),
        ("sessions in flight", int(router["seated"].sum()), 0),
        ("blocks of their outputs", int(np.abs(router["output_blocks"]).sum()), 0),
        ("sequences that ended", int(simulation.world.clients.num_done), simulation.journal().status.size),
    ]


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
        "ends before its first token": ~np.isin(rows.status, (CANCELLED, FAILED))
        & (rows.first_token_ns > rows.finish_ns),
    }
    for what, rows_that in bad.items():
        if rows_that.any():
            return f"sequence {int(np.argmax(rows_that))} {what}"
    return _uncomputed(simulation)


def _uncomputed(simulation: Simulation) -> str:
    """Tokens that were computed against prompts, outputs and what was computed again, less the hits.

    Equal when nobody was preempted and all finished. Else less may have been computed: who comes back may hit what
    others have computed meanwhile, and who is cancelled leaves tokens out. The step in the middle of which an engine
    restarts has computed what nobody gets. More never: a hit that is no hit, or is
    counted twice, shows here.
    """
    rows, counters = simulation.journal(), simulation.counters()
    prompt = simulation.requests.prompt_tokens[rows.request_index]
    ran, finished = rows.scheduled_ns >= 0, rows.status == FINISHED
    need = int((prompt + rows.output_tokens - finished - rows.cached_tokens)[ran].sum()) + counters.recomputed_tokens
    lost = simulation.lost_step_tokens()
    need += lost
    done = counters.prefill_tokens + counters.decode_tokens
    if simulation.settings.overlap:  # a step too many for each end, and for each token that a preemption dropped
        return "" if done <= need + ran.sum() + counters.preemptions else f"{done} tokens were computed, {need} needed"
    exact = (
        counters.preemptions == 0 and lost == 0 and not simulation.settings.cache.copy_on_write and finished[ran].all()
    )
    if done > need or (exact and done < need):
        return f"{done} tokens were computed; prompts, outputs and recomputation, less the hits, are {need}"
    return ""
