"""What was measured: deployments and runs of servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Figures = Mapping[tuple[str, str], float]
"""(metric, statistic) -> ms: ("ttft", "mean")."""


@dataclass(frozen=True)
class Server:
    """Who served, as the file names it. tp..dp: ranks."""

    engine: str
    version: str
    model: str
    system: str
    dtype: str = "bf16"
    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1


@dataclass(frozen=True)
class Deployment:
    """One row of a table: a closed loop of fixed lengths, and its means.

    doubt   why the row may not be what it says; "" where nothing speaks against it
    """

    name: str
    source: str
    server: Server
    prompt: int
    output: int
    concurrency: int
    measured: Figures
    doubt: str = ""


@dataclass(frozen=True)
class ServerRun:
    """One folder: every request of a server with its times.

    arguments, kv_blocks   of its meta.json
    link_gbs               between its devices, of its config.json; 0: not stated
    """

    name: str
    source: str
    server: Server
    folder: Path
    arguments: Mapping[str, object]
    kv_blocks: int
    block_tokens: int
    overlap: bool
    link_gbs: float = 0.0


@dataclass
class Truth:
    """All that was found. not_scored: (what, why)."""

    deployments: list[Deployment] = field(default_factory=list)
    runs: list[ServerRun] = field(default_factory=list)
    steps: list[Path] = field(default_factory=list)
    not_scored: list[tuple[str, str]] = field(default_factory=list)
