"""What a router is told: `router.<name>` is the field of the same name. Plain Python; no arrays.

A field is declared once: default, unit, meaning, and the policies that read it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..core.errors import UsageError
from ..core.keys import keys_of, rule

POLICIES = {
    "round-robin": "one engine after the other",
    "random": "any engine, each as likely as any other",
    "least-loaded": "the engine with the least load",
    "power-of-two": "the less loaded of two drawn at random",
    "session": "the engine of the session: sticky, or by a consistent hash",
    "prefix-hash": "by a consistent hash of the first tokens; the least loaded engine where that is too much",
    "longest-prefix": "who was sent most of the prompt before, whatever its load (vLLM's production stack)",
    "cache-aware": "who was sent most of the prompt before, unless the load is uneven (SGLang)",
    "kv-aware": "the least cost of blocks to prefill and blocks held (Dynamo)",
    "scorers": "the highest sum of weighted scores of queue, KV and prefix (llm-d)",
    "predicted-ttft": "the shortest queue and prefill of what is not cached, by the cost tables",
    "oracle": "the same with every cache and queue known as it is now",
}
"""Policy -> one line for `kvbench list`."""

_BELIEVERS = ("cache-aware", "longest-prefix", "kv-aware", "scorers", "predicted-ttft")
_BY_LOAD = ("least-loaded", "power-of-two", "session", "prefix-hash", "longest-prefix", "cache-aware")
_DRAWING = ("random", "power-of-two", "longest-prefix", "kv-aware", "scorers")
_REPORTED = (*_BY_LOAD, "scorers", "predicted-ttft")

PREDICTING = ("predicted-ttft", "oracle")
"""Policies that need the engines' step times."""

_USUAL_BELIEF = {"kv-aware": "events", "oracle": "truth"}
"""What belief = auto is; elsewhere own."""


@dataclass(frozen=True)
class RouterSettings:
    """`[router]`, checked by check_router."""

    policy: str = rule(
        "round-robin", "", "which engine gets a request (`kvbench list`)", tuple(POLICIES), kind="choice-or-function"
    )
    routers: int = rule(1, "routers", "that take turns and do not know of each other", low=1, high=64)
    decide_us: float = rule(0.0, "us", "that a decision takes", low=0, high=1e6)
    hash_us_per_token: float = rule(0.0, "us", "that a decision takes per prompt token", low=0, high=1e3)
    refresh_ms: float = rule(0.0, "ms", "between two reports of load; 0 = as it is now", low=0, high=1e9, of=_REPORTED)
    load: str = rule(
        "own",
        "",
        "own: what the router has in flight there; reported: what the engines say",
        ("own", "reported"),
        of=(*_BY_LOAD, "predicted-ttft"),
    )
    load_by: str = rule(
        "requests",
        "",
        "what load is: requests, prompt tokens not computed yet, share of KV in use, or requests a second",
        ("requests", "queued-tokens", "kv", "rate"),
        of=_BY_LOAD,
    )
    window_s: float = rule(
        60.0, "s", "in which requests are counted for load_by = rate", low=0.001, high=1e6, of=_BY_LOAD
    )
    counter: str = rule(
        "one",
        "",
        "of turns: one (SGLang), or each-set: one for each set of engines to choose from (production stack)",
        ("one", "each-set"),
        of=("round-robin",),
    )
    belief: str = rule(
        "auto",
        "",
        "what is cached where: own decisions, the engines' events, or the truth; auto = as the policy's model does",
        ("auto", "own", "events", "truth"),
        of=_BELIEVERS,
    )
    events_delay_ms: float = rule(0.0, "ms", "from a change of a cache to the router", low=0, high=1e9, of=_BELIEVERS)
    events_lost: float = rule(0.0, "share", "of the events that never come", low=0, high=1, of=_BELIEVERS)
    hears_loss: bool = rule(True, "", "an engine that restarts is believed to be empty", of=_BELIEVERS)
    block_tokens: int = rule(
        0, "tokens", "in a block of what is believed; 0 = the engines'", low=0, of=(*_BELIEVERS, "prefix-hash")
    )
    tree_tokens: int = rule(
        1 << 24, "tokens", "believed of an engine after own decisions are trimmed", low=1, of=_BELIEVERS
    )
    evict_interval_s: float = rule(60.0, "s", "between two trims", low=0.001, high=1e6, of=_BELIEVERS)
    ttl_s: float = rule(0.0, "s", "that an own decision is believed; 0 = for ever", low=0, high=1e6, of=_BELIEVERS[1:])
    assign: str = rule(
        "ring",
        "",
        "of a session: a hash on a ring or modulo, or where it was first: the least loaded, the fewest sessions",
        ("ring", "modulo", "sticky", "sticky-fewest"),
        of=("session",),
    )
    ring_points: int = rule(160, "points", "of an engine on a ring", low=1, high=65536, of=("session", "prefix-hash"))
    prefix_tokens: int = rule(256, "tokens", "of the prompt's start that are hashed", low=1, of=("prefix-hash",))
    bound: float = rule(1.25, "", "times the mean load is too much", low=1, of=("prefix-hash",))
    min_match_tokens: int = rule(
        0, "tokens", "of a prompt known somewhere that are enough", low=0, of=("longest-prefix",)
    )
    match_threshold: float = rule(
        0.3, "share", "of a prompt known there that is enough (older: 0.5)", low=0, high=1, of=("cache-aware",)
    )
    balance_abs: float = rule(
        64.0, "requests", "loads apart by more, and by balance_rel, are uneven", low=0, of=("cache-aware",)
    )
    balance_rel: float = rule(1.5, "", "times the least load", low=0, of=("cache-aware",))
    credit: float = rule(1.0, "", "of a cached block in the cost of prefill", low=0, of=("kv-aware",))
    credit_decay: float = rule(0.0, "", "how fast credit falls with the backlog", low=0, of=("kv-aware",))
    prefill_scale: float = rule(1.0, "", "of the cost of prefill", low=0, of=("kv-aware",))
    active_weight: float = rule(0.0, "blocks", "that a live request costs besides", low=0, of=("kv-aware",))
    temperature: float = rule(0.0, "", "of a draw by cost; 0 = the least cost", low=0, of=("kv-aware",))
    weight_queue: float = rule(2.0, "", "of the score of waiting requests", low=0, of=("scorers",))
    weight_kv: float = rule(2.0, "", "of the score of KV in use", low=0, of=("scorers",))
    weight_prefix: float = rule(3.0, "", "of the score of the prefix", low=0, of=("scorers",))
    weight_requests: float = rule(0.0, "", "of the score of own requests in flight", low=0, of=("scorers",))
    seed: int = rule(-1, "", "of what is drawn; -1 is `seed`", low=-1, of=_DRAWING)

    @property
    def is_own_file(self) -> bool:
        """The policy is a user's."""
        return self.policy not in POLICIES


def belief_of(settings: RouterSettings) -> str:
    """own, events or truth."""
    if settings.belief == "auto":
        return _USUAL_BELIEF.get(settings.policy, "own")
    return settings.belief


def load_of(settings: RouterSettings) -> str:
    """own or reported."""
    return "reported" if settings.policy in ("oracle", "scorers") else settings.load


ROUTER_KEYS = keys_of("router", RouterSettings)


def readers(name: str) -> tuple[str, ...]:
    """The policies that read a key `router.<name>`; () = all of them."""
    return next(tuple(f.metadata["of"]) for f in fields(RouterSettings) if f.name == name)


def check_router(
    settings: RouterSettings, where: dict[str, str], has_sessions: bool = True, engine_block_tokens: int = 0
) -> None:
    """UsageError in one line: a key of another policy or belief, sessions that the workload does not have.

    where   of the keys that somebody has set: field name -> place
    """
    policy = settings.policy
    for name, place in where.items():
        of = readers(name)
        if of and policy not in of and not settings.is_own_file:
            raise UsageError(
                f"{place}: router.{name} has no effect under router.policy = {policy}; it belongs to {', '.join(of)}"
            )
        belief = _BELIEF_OF_KEY.get(name, "")
        if belief and belief_of(settings) != belief:
            raise UsageError(
                f"{place}: router.{name} has no effect while router.belief is {belief_of(settings)}; "
                f"set router.belief = {belief}"
            )
    if "window_s" in where and settings.load_by != "rate":
        raise UsageError(
            f"{where['window_s']}: router.window_s has no effect while router.load_by is {settings.load_by}; "
            "set router.load_by = rate"
        )
    if settings.load_by == "rate" and load_of(settings) != "own" and policy in _BY_LOAD:
        raise UsageError(
            f"{where.get('load', 'router')}: router.load_by = rate is what the router itself has sent; no engine "
            "reports it; set router.load = own"
        )
    if policy == "session" and not has_sessions:
        raise UsageError(
            "router.policy = session needs requests of sessions, and this workload has none; "
            "take prefix-hash, or a workload with sessions"
        )
    if belief_of(settings) == "events" and settings.block_tokens not in (0, engine_block_tokens):
        raise UsageError(
            f"{where.get('block_tokens', 'router')}: router.block_tokens = {settings.block_tokens}, but events tell of "
            f"the engines' blocks of {engine_block_tokens} tokens; set router.block_tokens = 0 or router.belief = own"
        )


_BELIEF_OF_KEY = {
    "events_delay_ms": "events",
    "events_lost": "events",
    "tree_tokens": "own",
    "evict_interval_s": "own",
    "ttl_s": "own",
}
"""Keys that one belief alone reads."""
