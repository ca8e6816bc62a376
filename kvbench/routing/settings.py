"""What a router is told: `router.<name>` is the field of the same name. Plain Python; no arrays.

A field is declared once: default, unit, meaning, and the policies that read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from ..core.errors import UsageError
from ..core.keys import Key

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


def _key(kind: str, default: Any, unit: str, meaning: str, of: tuple[str, ...] = (), **more: Any) -> Any:
    """A field that is a key. of: the policies that read it; () = all."""
    return field(default=default, metadata={"kind": kind, "unit": unit, "meaning": meaning, "of": of, **more})


@dataclass(frozen=True)
class RouterSettings:
    """`[router]`, checked by check_router."""

    policy: str = _key(
        "choice-or-function", "round-robin", "", "which engine gets a request (`kvbench list`)", choices=tuple(POLICIES)
    )
    routers: int = _key("int", 1, "routers", "that take turns and do not know of each other", low=1, high=64)
    decide_us: float = _key("float", 0.0, "us", "that a decision takes", low=0)
    hash_us_per_token: float = _key("float", 0.0, "us", "that a decision takes per prompt token", low=0)
    refresh_ms: float = _key("float", 0.0, "ms", "between two reports of load; 0 = as it is now", _REPORTED, low=0)
    load: str = _key(
        "choice",
        "own",
        "",
        "own: what the router has in flight there; reported: what the engines say",
        (*_BY_LOAD, "predicted-ttft"),
        choices=("own", "reported"),
    )
    load_by: str = _key(
        "choice",
        "requests",
        "",
        "what load is: requests, prompt tokens not computed yet, or the share of KV in use",
        _BY_LOAD,
        choices=("requests", "queued-tokens", "kv"),
    )
    belief: str = _key(
        "choice",
        "auto",
        "",
        "what is cached where: own decisions, the engines' events, or the truth; auto = as the policy's model does",
        _BELIEVERS,
        choices=("auto", "own", "events", "truth"),
    )
    events_delay_ms: float = _key("float", 0.0, "ms", "from a change of a cache to the router", _BELIEVERS, low=0)
    events_lost: float = _key("float", 0.0, "share", "of the events that never come", _BELIEVERS, low=0, high=1)
    hears_loss: bool = _key("bool", True, "", "an engine that restarts is believed to be empty", _BELIEVERS)
    block_tokens: int = _key(
        "int", 0, "tokens", "in a block of what is believed; 0 = the engines'", (*_BELIEVERS, "prefix-hash"), low=0
    )
    tree_tokens: int = _key(
        "int", 1 << 24, "tokens", "believed of an engine after own decisions are trimmed", _BELIEVERS, low=1
    )
    evict_interval_s: float = _key("float", 60.0, "s", "between two trims", _BELIEVERS, low=0.001)
    ttl_s: float = _key("float", 0.0, "s", "that an own decision is believed; 0 = for ever", _BELIEVERS[1:], low=0)
    assign: str = _key(
        "choice",
        "ring",
        "",
        "of a session: a hash on a ring or modulo, or where it was first: the least loaded, the fewest sessions",
        ("session",),
        choices=("ring", "modulo", "sticky", "sticky-fewest"),
    )
    ring_points: int = _key(
        "int", 160, "points", "of an engine on a ring", ("session", "prefix-hash"), low=1, high=65536
    )
    prefix_tokens: int = _key("int", 256, "tokens", "of the prompt's start that are hashed", ("prefix-hash",), low=1)
    bound: float = _key("float", 1.25, "", "times the mean load is too much", ("prefix-hash",), low=1)
    min_match_tokens: int = _key(
        "int", 0, "tokens", "of a prompt known somewhere that are enough", ("longest-prefix",), low=0
    )
    match_threshold: float = _key(
        "float", 0.3, "share", "of a prompt known there that is enough (older: 0.5)", ("cache-aware",), low=0, high=1
    )
    balance_abs: float = _key(
        "float", 64.0, "requests", "loads apart by more, and by balance_rel, are uneven", ("cache-aware",), low=0
    )
    balance_rel: float = _key("float", 1.5, "", "times the least load", ("cache-aware",), low=0)
    credit: float = _key("float", 1.0, "", "of a cached block in the cost of prefill", ("kv-aware",), low=0)
    credit_decay: float = _key("float", 0.0, "", "how fast credit falls with the backlog", ("kv-aware",), low=0)
    prefill_scale: float = _key("float", 1.0, "", "of the cost of prefill", ("kv-aware",), low=0)
    active_weight: float = _key("float", 0.0, "blocks", "that a live request costs besides", ("kv-aware",), low=0)
    temperature: float = _key("float", 0.0, "", "of a draw by cost; 0 = the least cost", ("kv-aware",), low=0)
    weight_queue: float = _key("float", 2.0, "", "of the score of waiting requests", ("scorers",), low=0)
    weight_kv: float = _key("float", 2.0, "", "of the score of KV in use", ("scorers",), low=0)
    weight_prefix: float = _key("float", 3.0, "", "of the score of the prefix", ("scorers",), low=0)
    weight_requests: float = _key("float", 0.0, "", "of the score of own requests in flight", ("scorers",), low=0)
    seed: int = _key("int", -1, "", "of what is drawn; -1 is `seed`", _DRAWING, low=-1)

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


ROUTER_KEYS: tuple[Key, ...] = tuple(
    Key(
        f"router.{f.name}",
        f.metadata["kind"],
        f.default,
        f.metadata["unit"],
        f.metadata["meaning"],
        **{name: value for name, value in f.metadata.items() if name in ("choices", "low", "high")},
    )
    for f in fields(RouterSettings)
)


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
