"""The keys of `[tiers]` and `[links]`; without a size of the host there is no tier, and nothing of them is read."""

from __future__ import annotations

from ..core.keys import Key
from ..costs.models import KV_BYTES
from .rules import CONVERSIONS, HOST_EVICTION, LAYOUTS, LOADS, PRESET_RULES, STATES, STOP_POLICIES, WRITE_POLICIES

KV_TYPES = ("auto", *KV_BYTES)
_SHARING = ("fifo", "fair")

TIER_KEYS: tuple[Key, ...] = (
    Key(
        "tiers.preset",
        "choice",
        "auto",
        "",
        "whose rules; auto = those of the preset's engine",
        ("auto", *PRESET_RULES),
    ),
    Key(
        "tiers.host.ratio",
        "float",
        0.0,
        "",
        "host memory, in sizes of the device's cache; 0 = no tier",
        low=0,
        high=1e6,
    ),
    Key("tiers.host.blocks", "int", 0, "blocks", "host memory; 0 = by ratio or bytes", low=0, high=1e9),
    Key("tiers.host.bytes", "int", 0, "bytes", "host memory of a device; 0 = by ratio or blocks", low=0, high=1e15),
    Key("tiers.host.kv_dtype", "choice", "auto", "", "of KV on the host; auto = the device's", KV_TYPES),
    Key("tiers.host.state", "choice", "cold", "", "what lies on the host when the run starts", STATES),
    Key("tiers.host.write", "choice", "auto", "", "when a block is copied to the host", ("auto", *WRITE_POLICIES)),
    Key(
        "tiers.host.min_offers",
        "int",
        2,
        "",
        "write_through_selective: offers from which a block is copied",
        low=2,
        high=255,
    ),
    Key("tiers.host.outputs", "choice", "auto", "", "whether blocks of answers are copied, too", ("auto", "yes", "no")),
    Key("tiers.host.eviction", "choice", "lru", "", "who leaves the host first", HOST_EVICTION),
    Key(
        "tiers.host.closed",
        "choice",
        "auto",
        "",
        "no block leaves before those that continue it",
        ("auto", "yes", "no"),
    ),
    Key("tiers.host.load", "choice", "auto", "", "how hits on the host reach the device", ("auto", *LOADS)),
    Key("tiers.host.min_load_tokens", "int", -1, "tokens", "fewer are computed; -1 = the engine's own", low=-1),
    Key("tiers.host.layout", "choice", "layer_first", "", "of a block in host memory; decides its fragments", LAYOUTS),
    Key("tiers.host.convert", "choice", "pieces", "", "to it: while it moves, or by a copy", CONVERSIONS),
    Key(
        "tiers.storage.blocks",
        "int",
        0,
        "blocks",
        "storage behind the host, for all engines; 0 = by bytes",
        low=0,
        high=1e9,
    ),
    Key("tiers.storage.bytes", "int", 0, "bytes", "storage behind the host; 0 = by blocks, or none", low=0, high=1e15),
    Key("tiers.storage.kv_dtype", "choice", "auto", "", "of KV in storage; auto = the host's", KV_TYPES),
    Key("tiers.storage.state", "choice", "cold", "", "what lies in storage when the run starts", STATES),
    Key("tiers.storage.eviction", "choice", "lru", "", "who leaves storage first", HOST_EVICTION),
    Key("tiers.storage.batch_blocks", "int", 128, "blocks", "in one transfer from or to storage", low=1),
    Key("tiers.storage.min_prefetch_tokens", "int", 256, "tokens", "fewer are not fetched ahead", low=0),
    Key("tiers.storage.stop", "choice", "timeout", "", "when a prefetch ends", tuple(STOP_POLICIES)),
    Key("tiers.storage.timeout_ms", "float", 2000.0, "ms", "of stop = timeout, from the queue on", low=0, high=1e9),
    Key("tiers.storage.timeout_ms_per_ktoken", "float", 100.0, "ms", "more for 1,024 tokens", low=0, high=1e9),
    Key(
        "tiers.slowdown",
        "float",
        0.05,
        "share",
        "by which a step takes longer while a copy runs beside it",
        low=0,
        high=1,
    ),
)

LINK_KEYS: tuple[Key, ...] = (
    Key("links.host.down", "float", 0.0, "GB/s", "from device to host; 0 = 0.8 of the device's", low=0, high=1e6),
    Key("links.host.up", "float", 0.0, "GB/s", "from host to device; 0 = 0.8 of the device's", low=0, high=1e6),
    Key("links.host.setup_us", "float", 10.0, "us", "of every transfer", low=0, high=1e6),
    Key("links.host.fragment_us", "float", 0.0, "us", "for each contiguous piece of a transfer", low=0, high=1e6),
    Key("links.host.sharing", "choice", "fifo", "", "first in, first out; or all at once, equally", _SHARING),
    Key("links.storage.down", "float", 5.0, "GB/s", "from the host to storage", low=0.001, high=1e6),
    Key("links.storage.up", "float", 10.0, "GB/s", "from storage to the host", low=0.001, high=1e6),
    Key("links.storage.setup_us", "float", 100.0, "us", "of every transfer", low=0, high=1e6),
    Key("links.storage.batch_us", "float", 100.0, "us", "for each batch of a transfer", low=0, high=1e6),
    Key(
        "links.storage.out_at_s",
        "float",
        -1.0,
        "s",
        "storage cannot be reached from then on; -1 = never out",
        low=-1,
        high=1e6,
    ),
    Key("links.storage.out_for_s", "float", 1.0, "s", "and for so long", low=1e-6, high=1e6),
    Key(
        "links.host.convert",
        "float",
        0.0,
        "GB/s",
        "of that copy; 0 = half of the device",
        low=0,
        high=1e6,
    ),
    Key("links.storage.convert", "float", 0.0, "GB/s", "of one from layer_first to pages; 0 = none", low=0, high=1e6),
    Key("links.host.duplex", "choice", "full", "", "half: both directions share the link", ("full", "half")),
)
