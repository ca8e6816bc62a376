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
from ..core.requests import MAX_STREAM_TOKENS, NONE
from .draws import Purpose, Seeds, uniforms
from .keys import NAMESPACE_PARTS
from .layout import drawn
from .pieces import Pieces
from .quantiles import zipf_ranks

I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Values = Mapping[str, Any]

PREFIX = 3
LAYERS = ("sharing.system", "sharing.tools", "sharing.few_shot", "sharing.prefix")
"""Keys of the layers' lengths, in the order in which they stand in a prompt."""

PREFIX_FACTOR, PRIVATE = "sharing.prefix times", "sharing.prefix private"
"""Among the values of a phase where sharing.hit_rate steers; no keys."""

_ROWS_AT_ONCE = 1 << 16


def layer_sets(values: Values) -> tuple[int, int, int, int]:
    """How many different ones of each layer there are; 0 where it is left out."""
    sets = (1, values["sharing.tool_sets"], values["sharing.few_shot_sets"])
    used = (count if values[key] != 0 else 0 for key, count in zip(LAYERS, sets, strict=False))
    return (*used, values["sharing.groups"])


def layers(values: Values, seeds: Seeds, phase: int, num_sessions: int, used: Sequence[int]) -> tuple[I32, I32]:
    """(used, num_sessions) set of each used layer, NONE without one, and its tokens."""
    which = np.full((len(used), num_sessions), NONE, np.int32)
    tokens = np.zeros((len(used), num_sessions), np.int32)
    choices = (Purpose.GROUP, Purpose.TOOLS, Purpose.FEW_SHOT, Purpose.GROUP)
    sets = layer_sets(values)
    for row, layer in enumerate(used):
        count = sets[layer]
        if count == 0:
            continue
        u = uniforms(seeds.sharing, choices[layer], num_sessions, phase)
        which[row] = zipf_ranks(count, values["sharing.zipf"], u)
        purpose, number = (Purpose.PREFIX, 0) if layer == PREFIX else (Purpose.LAYER_TOKENS, layer)
        lengths = drawn(values, LAYERS[layer], seeds.sharing, purpose, count, number)
        if layer == PREFIX and (factor := values.get(PREFIX_FACTOR, 1.0)) != 1.0:
            lengths = np.maximum(np.rint(lengths * factor), 1).astype(np.int64)
            if int(lengths.max()) >= MAX_STREAM_TOKENS:
                raise UsageError(f"sharing.prefix draws {lengths.max()}, the limit is {MAX_STREAM_TOKENS - 1}")
        tokens[row] = lengths[which[row]]
    return which, tokens


def with_private(
    values: Values, seeds: Seeds, phase: int, layer: I32, layer_tokens: I32, used: Sequence[int]
) -> tuple[I32, I64]:
    """(used, num_sessions) sets, NONE where a session has a prefix of its own, and (num_sessions,) tokens of that."""
    share = values.get(PRIVATE, 0.0)
    if share == 0.0 or PREFIX not in used:
        return layer, np.zeros(layer.shape[1], np.int64)
    row = list(used).index(PREFIX)
    chosen = (uniforms(seeds.sharing, Purpose.PRIVATE, layer.shape[1], phase) < share) & (layer[row] != NONE)
    layer = layer.copy()
    layer[row, chosen] = NONE
    return layer, np.where(chosen, layer_tokens[row], 0).astype(np.int64)


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
    """(num_sessions,) tenant, and a number for what its namespace is made of.

    The latter is a number below sharing.namespaces, then for each of namespace.* the place of a name in its list, as
    digits. The first digit and the tenant are dealt from one draw: as many namespaces as tenants give each tenant its
    own, fewer are shared by several. The other digits are draws of their own.
    """
    tenants, namespaces = values["sharing.tenants"], values["sharing.namespaces"]
    client = levels(max(tenants, namespaces), seeds.sharing, Purpose.CLIENT, num_sessions, phase)
    code = client % namespaces
    for digit, part in enumerate(NAMESPACE_PARTS):
        count = len(names_of(values, part))
        if count > 1:
            # one generator for each part: the phase and the part make its number
            number = phase * len(NAMESPACE_PARTS) + digit
            code = code * count + levels(count, seeds.sharing, Purpose.NAMESPACE, num_sessions, number)
    return client % tenants, code


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

    def __init__(self, phases: Sequence[Values], codes: Sequence[I64]) -> None:
        """codes: for each phase the (n,) numbers of `clients`."""
        self._count = max(values["sharing.namespaces"] for values in phases)
        lists = [_in_order(names_of(values, part) for values in phases) for part in NAMESPACE_PARTS]
        if all(len(names) == 1 for names in lists):  # only their number tells them apart
            self.keys = [(number, *(names[0] for names in lists)) for number in range(self._count)]
            self.index = np.concatenate(codes)
            return
        met = [np.unique(code, return_inverse=True) for code in codes]
        keys = [[_key(values, int(code)) for code in found] for values, (found, _) in zip(phases, met, strict=True)]
        order = {
            key: tuple(names.index(n) for names, n in zip(lists, key[1:], strict=True)) for own in keys for key in own
        }
        self.keys = sorted(order, key=lambda key: (key[0], order[key]))
        place = {key: i for i, key in enumerate(self.keys)}
        moved = [np.array([place[key] for key in own])[row] for own, (_, row) in zip(keys, met, strict=True)]
        self.index = np.concatenate(moved).astype(np.int64)

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


def _key(values: Values, code: int) -> tuple[Any, ...]:
    """The number and the names that a code of `clients` stands for."""
    names = []
    for part in reversed(NAMESPACE_PARTS):
        choices = names_of(values, part)
        code, place = divmod(code, len(choices))
        names.append(choices[place])
    return code, *reversed(names)


def _in_order(lists: Any) -> list[str]:
    return list(dict.fromkeys(name for names in lists for name in names))
