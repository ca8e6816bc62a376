"""What prompts have in common: layers before a session's first text, documents before each text, clients.

    [system prompt] [tool definitions] [few-shot examples] [shared prefix] [documents] text

Which set of a layer a session has, and which documents a request retrieves, is drawn by a power law of their ranks. A
set or a document is the same in every phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import NONE
from .draws import Purpose, Seeds, uniforms
from .keys import NAMESPACE_PARTS
from .layout import drawn
from .pieces import Pieces
from .quantiles import zipf_ranks

I64 = NDArray[np.int64]
Values = Mapping[str, Any]

PREFIX = 3
LAYERS = ("sharing.system", "sharing.tools", "sharing.few_shot", "sharing.prefix")
"""Keys of the layers' lengths, in the order in which they stand in a prompt."""

_ROWS_AT_ONCE = 1 << 16


def layer_sets(values: Values) -> tuple[int, int, int, int]:
    """How many different ones of each layer there are; 0 where it is left out."""
    sets = (1, values["sharing.tool_sets"], values["sharing.few_shot_sets"])
    used = (count if values[key] != 0 else 0 for key, count in zip(LAYERS, sets, strict=False))
    return (*used, values["sharing.groups"])  # type: ignore[return-value]


def layers(values: Values, seeds: Seeds, phase: int, num_sessions: int) -> tuple[I64, I64]:
    """(4, num_sessions) set of each layer, NONE without one, and its tokens."""
    which = np.full((len(LAYERS), num_sessions), NONE, np.int64)
    tokens = np.zeros((len(LAYERS), num_sessions), np.int64)
    choices = (Purpose.GROUP, Purpose.TOOLS, Purpose.FEW_SHOT, Purpose.GROUP)
    for layer, (key, count) in enumerate(zip(LAYERS, layer_sets(values), strict=True)):
        if count == 0:
            continue
        u = uniforms(seeds.sharing, choices[layer], num_sessions, phase)
        which[layer] = zipf_ranks(count, values["sharing.zipf"], u)
        if layer == PREFIX:
            length = drawn(values, key, seeds.sharing, Purpose.PREFIX, count, 0)
        else:
            length = drawn(values, key, seeds.sharing, Purpose.LAYER_TOKENS, count, layer)
        tokens[layer] = length[which[layer]]
    return which, tokens


def documents(values: Values, seeds: Seeds, phase: int, asks: NDArray[np.bool_]) -> Pieces:
    """The documents that each row retrieves, those that do not ask none. Streams are ranks, from 0."""
    n, count = asks.size, values["documents.count"]
    if count == 0:
        return Pieces(np.zeros(n + 1, np.int64), np.zeros((3, 0), np.int64))
    wanted = drawn(values, "documents.per_request", seeds.sharing, Purpose.DOCUMENTS, n, phase, low=0)
    wanted = np.where(asks, np.minimum(wanted, count), 0)
    most = int(wanted.max(initial=0))
    tries = 2 * most + 4
    u = uniforms(seeds.sharing, Purpose.DOCUMENT, n * tries, phase)
    ranks = zipf_ranks(count, values["documents.zipf"], u).reshape(n, tries)
    parts = [
        _first_different(ranks[at : at + _ROWS_AT_ONCE], wanted[at : at + _ROWS_AT_ONCE], most)
        for at in range(0, n, _ROWS_AT_ONCE)
    ]
    chosen = np.concatenate(parts)
    offset = np.concatenate((np.zeros(1, np.int64), np.cumsum(wanted)))
    if values["documents.order"] == "ranked":
        chosen = chosen[np.lexsort((chosen, np.repeat(np.arange(n), wanted)))]
    tokens = drawn(values, "documents.tokens", seeds.sharing, Purpose.DOCUMENT_TOKENS, count, 0)
    return Pieces(offset, np.stack([chosen, np.zeros(chosen.size, np.int64), tokens[chosen]]))


def _first_different(ranks: I64, wanted: I64, most: int) -> I64:
    """The first different ranks of each row, as many as wanted; the most popular ones where the draws run out."""
    spare = np.broadcast_to(np.arange(most), (ranks.shape[0], most))
    tried = np.concatenate([ranks, spare], axis=1)
    order = np.argsort(tried, axis=1, kind="stable")
    ascending = np.take_along_axis(tried, order, axis=1)
    again = np.zeros(tried.shape, np.bool_)
    np.put_along_axis(again, order[:, 1:], ascending[:, 1:] == ascending[:, :-1], axis=1)
    number = np.cumsum(~again, axis=1)
    return tried[~again & (number <= wanted[:, None])]


# ---------------------------------------------------------------- clients


def clients(values: Values, seeds: Seeds, phase: int, num_sessions: int) -> tuple[I64, I64]:
    """(num_sessions,) tenant; (num_sessions, 1 + parts) what its namespace is made of.

    The first column is a number below sharing.namespaces. It and the tenant are dealt from one draw: as many
    namespaces as tenants give each tenant its own, fewer are shared by several. The others are draws of their own
    from the names under namespace.*, as places in these lists.
    """
    tenants, namespaces = values["sharing.tenants"], values["sharing.namespaces"]
    client = levels(max(tenants, namespaces), seeds.sharing, Purpose.CLIENT, num_sessions, phase)
    parts = np.zeros((num_sessions, 1 + len(NAMESPACE_PARTS)), np.int64)
    parts[:, 0] = client % namespaces
    for column, part in enumerate(NAMESPACE_PARTS, 1):
        count = len(names_of(values, part))
        if count > 1:
            # one generator for each part: the phase and the part make its number
            number = phase * len(NAMESPACE_PARTS) + column
            parts[:, column] = levels(count, seeds.sharing, Purpose.NAMESPACE, num_sessions, number)
    return client % tenants, parts


def levels(count: int, seed: int, purpose: Purpose, size: int, phase: int) -> I64:
    """(size,) whole numbers from 0 to count - 1, all equally likely."""
    u = uniforms(seed, purpose, size, phase)
    return np.minimum((u * count).astype(np.int64), count - 1)


def names_of(values: Values, part: str) -> list[str]:
    """The names that a namespace.* key allows."""
    given = values[f"namespace.{part}"]
    return [given] if isinstance(given, str) else list(given)


class Namespaces:
    """Numbers and names of the namespaces that a workload uses.

    keys    one for each number: (number among sharing.namespaces, name of each part)
    index   (n,) number of each row
    """

    def __init__(self, phases: Sequence[Values], rows: Sequence[I64]) -> None:
        """rows: for each phase the (n, 1 + parts) of `clients`."""
        lists = {part: _in_order(names_of(v, part) for v in phases) for part in NAMESPACE_PARTS}
        moved = []
        for values, own in zip(phases, rows, strict=True):
            columns = [own[:, 0]]
            for column, part in enumerate(NAMESPACE_PARTS, 1):
                place = np.array([lists[part].index(name) for name in names_of(values, part)])
                columns.append(place[own[:, column]])
            moved.append(np.stack(columns, axis=1))
        table = np.concatenate(moved)
        self._count = max(values["sharing.namespaces"] for values in phases)
        if all(len(names) == 1 for names in lists.values()):  # only their number tells them apart
            only = tuple(names[0] for names in lists.values())
            self.keys = [(number, *only) for number in range(self._count)]
            self.index = table[:, 0]
            return
        found, index = np.unique(table, axis=0, return_inverse=True)
        self.keys = [
            (int(row[0]), *(lists[part][at] for part, at in zip(NAMESPACE_PARTS, row[1:], strict=True)))
            for row in found
        ]
        self.index = index.reshape(-1).astype(np.int64)

    def names(self) -> tuple[str, ...]:
        return tuple(self._name(key) for key in self.keys)

    def _name(self, key: tuple[Any, ...]) -> str:
        parts = [f"namespace-{key[0]}"] if self._count > 1 else []
        return "/".join(parts + [f"{part}={name}" for part, name in zip(NAMESPACE_PARTS, key[1:], strict=True) if name])

    def flushes(self, tables: Sequence[Mapping[str, Any]]) -> tuple[I64, I64] | None:
        """Times in ns, ascending, and namespaces of flushes; None without one. UsageError names the flush."""
        if not tables:
            return None
        rows = [row for i, table in enumerate(tables) for row in self._flush(table, f"flush[{i}]")]
        rows.sort()
        times, which = zip(*rows, strict=True)
        return np.array(times, np.int64), np.array(which, np.int64)

    def _flush(self, table: Mapping[str, Any], where: str) -> list[tuple[int, int]]:
        at_s = table.get("at_s")
        if isinstance(at_s, bool) or not isinstance(at_s, int | float) or not 0 <= at_s <= 1e9:
            raise UsageError(f"{where}.at_s must be a number of seconds from 0 to 1e9, got {at_s!r}")
        known = ("at_s", "number", *NAMESPACE_PARTS)
        if strange := [name for name in table if name not in known]:
            raise UsageError(f"{where}: a flush has no {strange[0]!r}; it has {', '.join(known)}")
        asked = [table.get(name) for name in ("number", *NAMESPACE_PARTS)]
        hit = [i for i, key in enumerate(self.keys) if all(a in (None, k) for a, k in zip(asked, key, strict=True))]
        if not hit:
            raise UsageError(
                f"{where} empties no namespace of the workload; there are {', '.join(map(repr, self.names()))}"
            )
        return [(round(at_s * 1e6) * 1000, number) for number in hit]


def _in_order(lists: Any) -> list[str]:
    return list(dict.fromkeys(name for names in lists for name in names))
