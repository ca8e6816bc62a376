"""Keys of captured graphs and of the points at which host and device wait for each other. Data only.

graph.mode says what runs as a captured graph; what does not is launched kernel by kernel from the host, and a step
cannot be shorter than its launches (graphs.py). `auto` is what the engine of `costs.graphs` captures, with the launches
that are in the step times already; a named mode stands in their place. A kernel launched from Python takes about 25 us
of the host: 580 of them are the 14.8 ms below which no step of a 14B model came on a 910B3 before whole steps were
captured.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import UsageError
from ..core.keys import Key

MODES = ("auto", "none", "piecewise", "full-decode", "full-and-piecewise")

GRAPH_KEYS: tuple[Key, ...] = (
    Key(
        "graph.mode",
        "choice",
        "auto",
        "",
        "what is captured: pieces between attentions, whole steps of decodes, both; auto = as costs.graphs",
        MODES,
    ),
    Key("graph.capture_sizes", "str", "", "tokens", 'sizes captured, "1,2,4,8"; "" = the engine\'s own'),
    Key("graph.eager_us", "float", 25.0, "us", "launch of a kernel that is in no graph", low=0.0, high=1e6),
    Key("graph.replay_us", "float", 10.0, "us", "launch of a captured graph", low=0.0, high=1e6),
    Key("graph.mib_per_size", "float", 8.0, "MiB", "memory of a captured graph", low=0.0, high=1e6),
)

SYNC_KEYS: tuple[Key, ...] = (
    Key("sync.sampling_us", "float", 0.0, "us", "a step: sampling on the host; overlap hides none", low=0.0, high=1e6),
    Key("sync.logits_us", "float", 0.0, "us", "a step: logits copied out; overlap hides none", low=0.0, high=1e6),
    Key(
        "sync.block_tables_us",
        "float",
        0.0,
        "us",
        "a step: block tables copied in; overlap hides it",
        low=0.0,
        high=1e6,
    ),
)


@dataclass(frozen=True)
class GraphSettings:
    """Values of GRAPH_KEYS; each field is the key `graph.<field>`."""

    mode: str = "auto"
    capture_sizes: str = ""
    eager_us: float = 25.0
    replay_us: float = 10.0
    mib_per_size: float = 8.0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Ascending; empty: the engine's own. UsageError: no whole numbers from 1 on."""
        try:
            found = sorted({int(part) for part in self.capture_sizes.split(",") if part.strip()})
        except ValueError:
            found = [0]
        if any(not 1 <= size <= 65536 for size in found):
            raise UsageError(f"graph.capture_sizes = {self.capture_sizes!r}: write whole numbers from 1 on, 1,2,4,8")
        return tuple(found)


@dataclass(frozen=True)
class SyncSettings:
    """Values of SYNC_KEYS; each field is the key `sync.<field>`."""

    sampling_us: float = 0.0
    logits_us: float = 0.0
    block_tables_us: float = 0.0

    @property
    def exposed_us(self) -> float:
        """What the device waits for whatever is planned beside it."""
        return self.sampling_us + self.logits_us
