"""What an engine is told about its tiers: every rule by name, resolved. `bench` makes one from a configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")
"""When a block is copied to the host: once it is computed; once it was offered `min_offers` times; when the device's
cache evicts it."""
HOST_EVICTION = (
    "lru",
    "lfu",
    "fifo",
    "mru",
    "filo",
    "slru",
    "s3fifo",
    "sieve",
    "lru-k",
    "cost-aware",
    "gdsf",
    "random",
    "arc",
)
"""Those of the device's cache that need no more than a record, and ARC."""
STATES = ("cold", "warm", "prefilled")
"""Of a tier at t = 0; see offline.warm."""
LOADS = ("layerwise", "whole")
"""layerwise: a request is admitted with its hits, and each layer of its prefill waits for that layer's KV. whole: it is
admitted once all of it is there."""


PRESET_RULES: dict[str, dict[str, object]] = {
    "sglang": {
        "write": "write_through",
        "outputs": True,
        "closed": True,
        "load": "layerwise",
        "min_load_tokens": 10,
    },
    "vllm": {
        "write": "write_through",
        "outputs": False,
        "closed": False,
        "load": "whole",
        "min_load_tokens": 0,
    },
    "lmcache": {
        "write": "write_through",
        "outputs": False,
        "closed": False,
        "load": "whole",
        "min_load_tokens": 256,
    },
}
"""What `auto` comes to: SGLang's HiCache, vLLM's offloading connector, LMCache's local CPU back end (whole chunks)."""

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head")
"""How a block lies in host memory; on the device it is layer_first, and a transfer goes in the pieces of both."""


PAGES = ("page_first", "page_head")
"""Layouts in which a block is one piece on the host, and on the device one for each layer."""
CONVERSIONS = ("pieces", "copy")
"""How a block comes from one layout to the other: in the pieces of both while it moves; or by a copy on the device,
from or to one piece, which moves whole."""


def fragments_of(layout: str, block_tokens: int, layers: int, kv_heads: int, is_latent: bool) -> int:
    """Contiguous pieces of one block on its way between device and host.

    layer_first, page_first_direct   one for each layer, of K and of V (a latent has no V)
    page_first    tokens outside layers: one for each token of each layer
    page_head     heads outside tokens: one for each head of each token of each layer
    """
    pieces = layers * (1 if is_latent else 2)
    if layout == "page_first":
        return pieces * block_tokens
    if layout == "page_head":
        return pieces * block_tokens * (1 if is_latent else kv_heads)
    return pieces


@dataclass(frozen=True)
class LinkRules:
    """One direction of a link. ns_per_byte: of its bandwidth."""

    setup_ns: float = 0.0
    fragment_ns: float = 0.0
    ns_per_byte: float = 0.0


BEST_EFFORT, WAIT_COMPLETE, TIMEOUT = range(3)
STOP_POLICIES = {"best_effort": BEST_EFFORT, "wait_complete": WAIT_COMPLETE, "timeout": TIMEOUT}


@dataclass(frozen=True)
class StoreRules:
    """`tiers.storage.<name>` keys. No blocks: there is none. One for all engines of a run."""

    blocks: int = 0
    eviction: str = "lru"
    block_bytes: int = 0
    """Of all devices of an engine."""
    batch_blocks: int = 128
    """Blocks that go in one transfer."""
    min_prefetch_tokens: int = 256
    stop: str = "timeout"
    """Of STOP_POLICIES."""
    timeout_ns: int = 0
    timeout_token_ns: float = 0.0
    down: LinkRules = field(default_factory=LinkRules)
    """A fragment is a batch."""
    up: LinkRules = field(default_factory=LinkRules)
    state: str = "cold"
    """At t = 0: of STATES."""
    outage_ns: tuple[int, ...] = ()
    """When it cannot be reached any more, and when it can again."""


@dataclass(frozen=True)
class HostLink:
    """Between device and host. fair: operations share it; half_duplex: its two directions do."""

    down: LinkRules = field(default_factory=LinkRules)
    up: LinkRules = field(default_factory=LinkRules)
    fair: bool = False
    half_duplex: bool = False


@dataclass(frozen=True)
class TierRules:
    """`tiers.<name>` and `links.<name>` keys. No blocks on the host: there is no tier."""

    host_blocks: int = 0
    eviction: str = "lru"
    """Of HOST_EVICTION."""
    state: str = "cold"
    """At t = 0: of STATES."""
    closed: bool = True
    """A block does not leave before those that continue its prefix."""
    min_offers: int = 1
    """A block is written once it was offered so often: 1 is write_through, 2 write_through_selective."""
    writes_back: bool = False
    """A block is written when the device's cache evicts it, and not before."""
    outputs: bool = True
    """Blocks of answers are written too."""
    load: str = "layerwise"
    min_load_tokens: int = 1
    """Fewer are computed again."""
    layers: int = 1
    """In which a load arrives."""
    block_bytes: int = 0
    """That a block moves over the link: of all layers, on one device."""
    block_fragments: int = 1
    """Contiguous pieces of it."""
    slowdown: float = 0.0
    """Share of a step's time by which it takes longer while a copy is under way beside it."""
    host_link: HostLink = field(default_factory=HostLink)
    store: StoreRules = field(default_factory=StoreRules)
    ignores_namespace: bool = False
    """A planted fault."""
    backup: bool = False
    """Without blocks on the host: everything is written, and nothing is found again."""

    @property
    def on(self) -> bool:
        """Whether there is a tier."""
        return self.host_blocks > 0

    @property
    def moves(self) -> bool:
        """Whether anything is copied."""
        return self.on or self.backup
