"""Where placing experts anew pays, as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .table import grid, note


@dataclass(frozen=True)
class ExpertCase:
    """One point: balancedness under the first map and the balanced one; ns of a step under the first, saved, and of the
    move; blocks: of those without redundant experts."""

    skew: float
    tokens: int
    redundant: int
    even_before: float
    even_after: float
    step_ns: float
    saved_ns: float
    pause_ns: int
    blocks: float

    @property
    def saved_share(self) -> float:
        return self.saved_ns / self.step_ns

    @property
    def paid_after(self) -> float:
        """Steps until the move is saved; inf: never."""
        return self.pause_ns / self.saved_ns if self.saved_ns > 0 else float("inf")


PAYS = 0.02
"""Share of a step that has to be saved for a point to be one that pays: less is lost in what is not modelled."""


def expert_table(cases: Sequence[ExpertCase], held: str) -> str:
    """At most 100 columns."""
    header = ["skew", "tokens", "redundant", "balance", "step ms", "saved", "paid after", "KV blocks", "pays"]
    rows = []
    for c in cases:
        paid = f"{c.paid_after:,.0f}" if c.paid_after < 1e6 else "never"
        rows.append(
            [
                f"{c.skew:g}",
                f"{c.tokens:,}",
                f"{c.redundant}",
                f"{c.even_before:.3f} -> {c.even_after:.3f}",
                f"{c.step_ns / 1e6:,.2f}",
                f"{100 * c.saved_share:+.1f} %",
                paid,
                f"{100 * (c.blocks - 1):+.1f} %",
                "yes" if c.saved_share >= PAYS else "no",
            ]
        )
    told = note(
        f"tokens: of a device in a step. balance: mean / fullest device, first map and balanced. saved: of the whole "
        f"step. paid after: steps until a synchronous move is saved. KV blocks: memory of redundant experts. pays: "
        f"saves {100 * PAYS:g} % or more."
    )
    return f"{note(held)}\n\n{grid(header, rows)}\n\n{told}\n"


def expert_document(cases: Sequence[ExpertCase]) -> dict[str, Any]:
    return {
        "kind": "kvbench.experts",
        "cases": [asdict(c) | {"saved_share": c.saved_share, "pays": c.saved_share >= PAYS} for c in cases],
    }
