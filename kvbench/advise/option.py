"""One change of keys that may help: its name, what it costs, how options are combined and cut to a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FREE = "no memory, device or quality"
QUALITY = "quality of the answers: measure it"
MARGIN = "the margin of memory for peaks"


@dataclass(frozen=True)
class Option:
    """One change. changes: "key=value" each. devices: how many times the devices of now it takes."""

    lever: str
    changes: tuple[str, ...]
    cost: str = FREE
    devices: float = 1.0

    @property
    def keys(self) -> str:
        return " ".join(self.changes)


def together(a: Option, b: Option) -> Option:
    """Both changes at once."""
    cost = " and ".join(dict.fromkeys(c for c in (a.cost, b.cost) if c != FREE)) or FREE
    return Option(f"{a.lever} + {b.lever}", (*a.changes, *b.changes), cost, a.devices * b.devices)


def do_not_clash(a: Option, b: Option) -> bool:
    """They change different keys."""
    return not {c.partition("=")[0] for c in a.changes} & {c.partition("=")[0] for c in b.changes}


def within(options: Sequence[Option], budget: int) -> list[Option]:
    """As many as may be tried: in turn the first option of each lever, then the second; more devices come last."""
    by_lever: dict[str, list[Option]] = {}
    for option in options:
        by_lever.setdefault(option.lever, []).append(option)
    depth = max(map(len, by_lever.values()), default=0)
    in_turn = [own[i] for i in range(depth) for own in by_lever.values() if i < len(own)]
    kept = set(sorted(in_turn, key=lambda option: option.devices > 1)[:budget])
    return [option for option in options if option in kept]


def one(lever: str, key: str, value: object) -> Option:
    return Option(lever, (f"{key}={value}",))
