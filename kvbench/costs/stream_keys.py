"""The keys of `[streams]` and the settings they make. Plain Python."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.keys import Key


@dataclass(frozen=True)
class StreamSettings:
    """`streams.<name>`."""

    shared_expert: str = "off"
    tokens: int = 256
    sync_us: float = 3.0
    core_split: float = 0.0
    two_batch: str = "off"
    two_batch_tokens: int = 64


STREAM_KEYS: tuple[Key, ...] = (
    Key("streams.shared_expert", "choice", "off", "", "a shared expert beside the routed ones", ("off", "on")),
    Key("streams.tokens", "int", 256, "tokens", "beyond so many of a step they run in turn (SGLang: 1,024)", low=0),
    Key("streams.sync_us", "float", 3.0, "us", "in each layer, to part and to join", low=0.0),
    Key("streams.core_split", "float", 0.0, "", "cores that the shared one gets; 0 = as they come", low=0.0, high=0.9),
    Key("streams.two_batch", "choice", "off", "", "exchange of a half beside compute of the other", ("off", "on")),
    Key("streams.two_batch_tokens", "int", 64, "tokens", "of a rank's step, below which it is not halved", low=2),
)
