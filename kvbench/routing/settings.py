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
}
"""Policy -> one line for `kvbench list`."""

BY_LOAD = ("least-loaded", "power-of-two")
"""Policies that look at load."""
DRAWING = ("random", "power-of-two")
"""Policies that draw a random number."""


def _key(kind: str, default: Any, unit: str, meaning: str, of: tuple[str, ...] = (), **more: Any) -> Any:
    """A field that is a key. of: the policies that read it; () = all."""
    return field(default=default, metadata={"kind": kind, "unit": unit, "meaning": meaning, "of": of, **more})


@dataclass(frozen=True)
class RouterSettings:
    """`[router]`, checked by check_router."""

    policy: str = _key(
        "choice-or-function", "round-robin", "", "which engine gets a request (`kvbench list`)", choices=tuple(POLICIES)
    )
    refresh_ms: float = _key(
        "float", 0.0, "ms", "between two reports of an engine's load; 0 = as it is now", BY_LOAD, low=0
    )
    decide_us: float = _key("float", 0.0, "us", "that a decision takes", low=0)
    hash_us_per_token: float = _key("float", 0.0, "us", "that a decision takes per prompt token", low=0)
    load: str = _key(
        "choice",
        "own",
        "",
        "own: what the router has in flight there; reported: what the engines say",
        BY_LOAD,
        choices=("own", "reported"),
    )
    load_by: str = _key(
        "choice",
        "requests",
        "",
        "what load is: requests, prompt tokens not computed yet, or the share of KV in use",
        BY_LOAD,
        choices=("requests", "queued-tokens", "kv"),
    )
    assign: str = _key(
        "choice",
        "ring",
        "",
        "a session's engine: ring = consistent hash, modulo, or sticky = where it was first, the least loaded then",
        ("session",),
        choices=("ring", "modulo", "sticky"),
    )
    ring_points: int = _key("int", 160, "points", "of an engine on the hash ring", ("session",), low=1, high=65536)
    seed: int = _key("int", -1, "", "of what is drawn; -1 is `seed`", DRAWING, low=-1)

    @property
    def is_own_file(self) -> bool:
        """The policy is a user's."""
        return self.policy not in POLICIES


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


def check_router(settings: RouterSettings, where: dict[str, str], has_sessions: bool = True) -> None:
    """UsageError in one line: a key of another policy, sessions that the workload does not have.

    where   of the keys that somebody has set: field name -> place
    """
    for name, place in where.items():
        of = readers(name)
        if of and settings.policy not in of and not settings.is_own_file:
            raise UsageError(
                f"{place}: router.{name} has no effect under router.policy = {settings.policy}; "
                f"it belongs to {', '.join(of)}"
            )
    if settings.policy == "session" and not has_sessions:
        raise UsageError(
            "router.policy = session needs requests of sessions, and this workload has none; "
            "take prefix-hash, or a workload with sessions"
        )
