"""What a pair of engines is told: `pd.<name>` is the field of the same name. Plain Python; no arrays.

A field is declared once: default, unit, meaning, and the protocols that read it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..core.errors import UsageError
from ..core.keys import Key, keys_of, rule
from ..core.units import NS_PER_S

PULL, PUSH, LAYERWISE = "pull", "push", "layerwise"
PROTOCOLS = {
    PULL: "the decode side reads what the prefill side has computed and holds under a lease (vLLM, NIXL)",
    PUSH: "the decode side has memory first, the prefill side writes as it computes (SGLang)",
    LAYERWISE: "the same between engines with a token budget (vllm-ascend)",
}
BY_DISCIPLINE = {
    "token-budget": {"auto": PULL, "pull": PULL, "push": LAYERWISE},
    "prefill-first": {"auto": PUSH, "push": PUSH},
}
"""What pd.protocol means for each scheduler; auto: what its own engine does."""


@dataclass(frozen=True)
class PairSettings:
    """`[pd]`, checked by check_pairs."""

    prefill: int = rule(0, "engines", "that prefill; 0 = all engines do both", low=0, high=4096, kind="engines")
    decode: int = rule(0, "engines", "that decode; 0 = all engines do both", low=0, high=4096, kind="engines")
    protocol: str = rule("auto", "", "who moves the KV; auto = as the scheduler's engine does", ("auto", PULL, PUSH))
    transfer: str = rule(
        "auto",
        "",
        "whole: once a prompt is computed; chunk, layer: as it is computed; auto = whole under pull, chunk under push, "
        "layer under a push with a token budget",
        ("auto", "whole", "chunk", "layer"),
    )
    first_token: str = rule(
        "decode",
        "",
        "which side hands out the first token; prefill: the transfer is a gap between two tokens",
        ("prefill", "decode"),
    )
    failure: str = rule(
        "fail",
        "",
        "a transfer that failed ends its request, or its prompt is computed on the decode side",
        ("fail", "recompute"),
        of=(PULL, LAYERWISE),
    )
    lease_s: float = rule(30.0, "s", "that a computed prompt waits to be read", low=0.001, high=1e6, of=(PULL,))
    heartbeat_s: float = rule(
        0.0, "s", "between signs that a prompt is still wanted; 0 = lease / 6, -1 = none", low=-1, high=1e6, of=(PULL,)
    )
    tells_unread: bool = rule(
        True,
        "",
        "the prefill side hears of a request that was given up before it was read; else it waits for its lease",
        of=(PULL,),
    )
    bootstrap_timeout_s: float = rule(
        300.0, "s", "from a request's arrival to the decode side's memory for it", low=0.001, high=1e6, of=(PUSH,)
    )
    bootstrap_until: str = rule(
        "memory",
        "",
        "what the bootstrap time-out waits for: memory on the decode side, as SGLang does, or its answer alone",
        ("memory", "connection"),
        of=(PUSH,),
    )
    transfer_timeout_s: float = rule(
        300.0,
        "s",
        "from the decode side's memory to the end of the transfer",
        low=0.001,
        high=1e6,
        of=(PUSH, LAYERWISE),
    )
    reserved_decode_tokens: int = rule(
        512, "tokens", "kept free for each request that decodes or will", low=0, of=(PUSH,)
    )
    preallocated_requests: int = rule(
        -1,
        "requests",
        "that may hold memory beside the running ones; -1 = twice the running ones up to 32, else 0",
        low=-1,
        of=(PUSH,),
    )

    fault: tuple[dict[str, Any], ...] = ()
    """[[pd.fault]], see faults_of."""

    @property
    def is_on(self) -> bool:
        return self.prefill > 0 and self.decode > 0


FAULTS = {
    "link-down": "what moves over the link fails",
    "heartbeats-lost": "leases are not kept up (pull)",
    "notices-lost": "the prefill side does not hear that it has been read (pull)",
    "router-late": "the decode side is told of what is computed only when it is over (pull)",
}


@dataclass(frozen=True)
class Fault:
    """kind: of FAULTS. prefill, decode: of the link, by their numbers on their side."""

    kind: str
    at_ns: int
    for_ns: int
    prefill: int = 0
    decode: int = 0


def faults_of(settings: PairSettings) -> tuple[Fault, ...]:
    """UsageError: a table of [[pd.fault]] that says what is none."""
    return tuple(_fault(table, f"[[pd.fault]] {i}", settings) for i, table in enumerate(settings.fault, 1))


def _fault(table: dict[str, Any], where: str, settings: PairSettings) -> Fault:
    kind = table.get("kind")
    if kind not in FAULTS:
        raise UsageError(f"{where}: kind is one of {', '.join(FAULTS)}; got {kind!r}")
    known = {"kind", "at_s", "for_s", "prefill", "decode"}
    for name, value in table.items():
        if name not in known:
            raise UsageError(f"{where}: unknown key {name}; known are {', '.join(sorted(known))}")
        if name != "kind" and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
            raise UsageError(f"{where}: {name} is a number of at least 0, got {value!r}")
    link = int(table.get("prefill", 0)), int(table.get("decode", 0))
    if link[0] >= settings.prefill or link[1] >= settings.decode:
        raise UsageError(f"{where}: there is no link {link[0]} to {link[1]}; engines are counted from 0 on each side")
    at, lasts = table.get("at_s", 0), table.get("for_s", 0)
    return Fault(str(kind), round(at * NS_PER_S), round(lasts * NS_PER_S), *link)


@dataclass(frozen=True)
class PairRules:
    """The same with nothing open, in ns and bytes.

    layers            of the model under transfer = layer, 1 = chunk, 0 = whole
    block_bytes, block_fragments   of a block on all devices of a side together
    setup_ns, fragment_ns, ns_per_byte   of a link
    per, fair         see links.kv
    devices           of a prefill and of a decode engine
    """

    num_prefill: int
    num_decode: int
    protocol: str
    layers: int
    hands_out: bool
    lease_ns: int
    heartbeat_ns: int
    bootstrap_ns: int
    arrival_ns: int
    block_bytes: int
    block_fragments: int
    setup_ns: float
    fragment_ns: float
    ns_per_byte: float
    per: str = "pair"
    fair: bool = True
    devices: tuple[int, int] = (1, 1)
    tells_unread: bool = True
    faults: tuple[Fault, ...] = ()


PAIR_KEYS: tuple[Key, ...] = (
    *keys_of("pd", PairSettings),
    Key("pd.fault", "tables", [], "", "[[pd.fault]]: kind, at_s, for_s, and which link (prefill, decode); docs/pd.md"),
    Key("links.kv.gb_per_s", "float", 50.0, "GB/s", "of a prefill engine's link to a decode engine", low=0, high=1e6),
    Key("links.kv.latency_us", "float", 10.0, "us", "before the first byte of a transfer", low=0, high=1e6),
    Key("links.kv.fragment_us", "float", 0.0, "us", "for each contiguous piece (a block of a layer)", low=0, high=1e4),
    Key(
        "links.kv.per",
        "choice",
        "pair",
        "",
        "a link for every pair, for every prefill or decode engine, or one for all",
        ("pair", "prefill", "decode", "all"),
    ),
    Key("links.kv.sharing", "choice", "fair", "", "transfers share a link, or go one by one", ("fair", "fifo")),
)


def check_pairs(settings: PairSettings, discipline: str, where: dict[str, str]) -> None:
    """UsageError in one line: a side without engines, a key of the other protocol, a protocol of another scheduler.

    where   of the keys that somebody has set: field name -> place
    """
    if not settings.is_on:
        for name, place in where.items():
            if name in ("prefill", "decode") and getattr(settings, name) > 0:
                other = "decode" if name == "prefill" else "prefill"
                raise UsageError(f"{place}: pd.{name} engines need pd.{other} engines; set pd.{other} = 1 or more")
            if name not in ("prefill", "decode"):
                raise UsageError(f"{place}: pd.{name} has no effect without pd.prefill and pd.decode engines")
        return
    if settings.protocol not in BY_DISCIPLINE[discipline]:
        fitting = next(name for name, known in BY_DISCIPLINE.items() if settings.protocol in known)
        raise UsageError(
            f"{where.get('protocol', 'pd')}: pd.protocol = {settings.protocol} is what engines with "
            f"scheduler.discipline = {fitting} do; this one has {discipline}: set pd.protocol = auto, or another preset"
        )
    protocol = protocol_of(settings, discipline)
    called = PUSH if protocol == LAYERWISE else protocol
    for f in fields(PairSettings):
        of = f.metadata.get("of", ())
        if f.name in where and of and protocol not in of:
            raise UsageError(
                f"{where[f.name]}: pd.{f.name} has no effect under pd.protocol = {called}"
                + (f" with scheduler.discipline = {discipline}" if protocol == LAYERWISE else "")
            )
    if protocol == LAYERWISE and settings.first_token == "prefill":
        raise UsageError(
            f"{where.get('first_token', 'pd')}: pd.first_token = prefill does not go with pd.protocol = push under "
            f"scheduler.discipline = {discipline}: its decode side computes the first token again"
        )
    if protocol == PULL and settings.transfer in ("chunk", "layer"):
        raise UsageError(
            f"{where.get('transfer', 'pd')}: pd.transfer = {settings.transfer} needs pd.protocol = push: "
            "who reads cannot begin before the prompt is computed"
        )


def protocol_of(settings: PairSettings, discipline: str) -> str:
    """PULL, PUSH or LAYERWISE."""
    return BY_DISCIPLINE[discipline][settings.protocol]


def transfer_of(settings: PairSettings, discipline: str) -> str:
    if settings.transfer != "auto":
        return settings.transfer
    return {PULL: "whole", PUSH: "chunk", LAYERWISE: "layer"}[protocol_of(settings, discipline)]
