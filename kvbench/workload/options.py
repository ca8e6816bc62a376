"""How a trace is read: the trace.* keys, and what else changes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TraceOptions:
    """The trace.* keys (without the path; keys.py has their meaning), and:

    num_prompts   only the first rows of the file; 0 is all
    max_tokens    as lengths.max_tokens
    arrival_seed  seed of the jitter and of arrivals that the trace does not have
    length_seed   seed of lengths that the trace gives as distributions
    """

    format: str = "auto"
    block_tokens: int = 0
    time_scale: float = 1.0
    arrivals: str = "recorded"
    rate: float = 0.0
    burstiness: float = 1.0
    start_s: float = 0.0
    duration_s: float = 0.0
    jitter_ms: float = 0.0
    skip_bad_rows: bool = False
    columns: str = ""
    turns: str = "auto"
    default_output: Any = 0
    time_unit: str = "auto"
    sort: bool = False
    tokenizer: str = ""
    chars_per_token: float = 0.0
    num_prompts: int = 0
    max_tokens: Any = "output"
    arrival_seed: int = 0
    length_seed: int = 0

    @property
    def rows_read(self) -> int:
        """How many rows of a file are looked at; 0 is all. The first of a file that is sorted may stand anywhere."""
        return 0 if self.sort else self.num_prompts
