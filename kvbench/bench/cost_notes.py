"""What a reader must be told of the costs: what a quantised cache is worth to the run, and what overlap hides."""

from __future__ import annotations

from ..core.journal import Counters
from ..costs.graph_keys import SyncSettings
from ..costs.kv_format import is_quantised, token_bytes
from ..costs.kv_times import break_even_tokens
from .step_times import found_times
from .system import System


def kv_notes(system: System, counters: Counters) -> tuple[str, ...]:
    """One line; none where KV has 16 bits or its step times were measured for it."""
    d = system.deployment
    if not is_quantised(d.kv_dtype) or system.config["step_times"]:
        return ()
    own = token_bytes(d.model, d.kv_dtype, d.tp, d.kv)
    share = own / token_bytes(d.model, "bf16", d.tp)
    even = break_even_tokens(found_times(system), d, system.costs)
    faster = f"steps are faster from {even:,.0f} cached tokens on" if even < float("inf") else "steps are never faster"
    return (
        f"KV {d.kv_dtype}: {100 * share:.1f} % of the bytes of 16 bits, scales included; {faster}, this run holds "
        f"{counters.kv_tokens_mean:,.0f} in the mean; regime: {regime(counters, share, even)}. What it does to the "
        "answers is not modelled",
    )


def sync_notes(sync: SyncSettings, overlap: bool) -> tuple[str, ...]:
    """Where host and device wait for each other, and what of it overlap hides; none where nothing is said of it."""
    if sync == SyncSettings():
        return ()
    tables = "hidden by overlap" if overlap else "not hidden: overlap is off"
    return (
        f"sync points of a step: sampling {sync.sampling_us:g} us and logits {sync.logits_us:g} us, hidden by nothing; "
        f"block tables {sync.block_tables_us:g} us, {tables}",
    )


def regime(counters: Counters, share: float, even: float) -> str:
    """Which of the two gains there is. share: of the bytes at 16 bits; even: tokens from which steps are faster.

    capacity    more blocks were in use, or are kept for hits, than 16 bits would hold
    bandwidth   steps read more than the break-even
    """
    capacity = counters.evicted_blocks > 0 or counters.used_blocks_peak > share * counters.num_blocks
    bandwidth = counters.kv_tokens_mean > even
    return (
        " and ".join(name for name, is_so in (("capacity", capacity), ("bandwidth", bandwidth)) if is_so) or "neither"
    )
