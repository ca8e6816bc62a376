"""Plans of moves: from the old map of a layer to the new one, who sends which expert to whom.

An expert travels to a rank once; further slots of it there are copied within the rank. vLLM's plan, which knows ranks
alone; SGLang's, which takes from the own node first; vllm-ascend's, which takes from whoever gives the expert up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .layout import I64

EMPTY = -1
"""A slot without an expert: of a rank that is new."""


class Move(NamedTuple):
    """An expert of one layer from a rank to another."""

    expert: int
    source: int
    target: int


@dataclass(frozen=True)
class Held:
    """Experts of one layer by rank, before and after. old, new: (slots,) maps; EMPTY: nothing there."""

    old: tuple[tuple[int, ...], ...]
    new: tuple[tuple[int, ...], ...]

    @property
    def needs(self) -> list[tuple[int, list[int], list[int]]]:
        """(expert, ranks that hold it, ranks that will and do not yet), by expert, where somebody needs it."""
        ranks = range(len(self.old))
        before, after = [set(rows) for rows in self.old], [set(rows) for rows in self.new]
        wanted = sorted({expert for rows in after for expert in rows} - {EMPTY})
        found = []
        for expert in wanted:
            needy = [r for r in ranks if expert in after[r] and expert not in before[r]]
            if needy:
                found.append((expert, [r for r in ranks if expert in before[r]], needy))
        return found


def held(old: I64 | Sequence[int], new: I64 | Sequence[int], ranks: int) -> Held:
    """Of two maps of a layer."""
    return Held(_by_rank(old, ranks), _by_rank(new, ranks))


def _by_rank(row: I64 | Sequence[int], ranks: int) -> tuple[tuple[int, ...], ...]:
    values, size = [int(expert) for expert in row], len(row) // ranks
    return tuple(tuple(values[r * size : (r + 1) * size]) for r in range(ranks))


def vllm_moves(of: Held) -> list[Move]:
    """Receivers are dealt to senders in equal runs; who is left over goes to the first senders, one each."""
    moves = []
    for expert, senders, needy in of.needs:
        run, _ = divmod(len(needy), len(senders))
        for i, source in enumerate(senders):
            moves += [Move(expert, source, target) for target in needy[i * run : (i + 1) * run]]
            if len(senders) * run + i < len(needy):
                moves.append(Move(expert, source, needy[len(senders) * run + i]))
    return moves


def sglang_moves(of: Held, nodes: int) -> list[Move]:
    """From holders on the own node, else from all holders, in contiguous runs of which the first are longer."""
    per_node = len(of.old) // nodes
    moves = []
    for expert, holders, needy in of.needs:
        with_holder = {rank // per_node for rank in holders}
        far = [rank for rank in needy if rank // per_node not in with_holder]
        moves += _runs(expert, holders, far)
        for node in sorted(with_holder):
            near = [rank for rank in holders if rank // per_node == node]
            moves += _runs(expert, near, [rank for rank in needy if rank // per_node == node])
    return moves


def _runs(expert: int, senders: Sequence[int], receivers: Sequence[int]) -> list[Move]:
    run, longer = divmod(len(receivers), len(senders))
    moves, at = [], 0
    for i, source in enumerate(senders):
        size = run + (1 if i < longer else 0)
        moves += [Move(expert, source, target) for target in receivers[at : at + size]]
        at += size
    return moves


def ascend_moves(of: Held) -> list[Move]:
    """From the first rank that gives the expert up, else from the first that holds it: one rank may send everything."""
    after = [set(rows) for rows in of.new]
    moves = []
    for expert, holders, needy in of.needs:
        source = next((rank for rank in holders if expert not in after[rank]), holders[0])
        moves += [Move(expert, source, target) for target in needy]
    return moves


Plan = Callable[[Held, int], list[Move]]

PLANS: dict[str, Plan] = {
    "vllm": lambda of, nodes: vllm_moves(of),
    "sglang": sglang_moves,
    "vllm-ascend": lambda of, nodes: ascend_moves(of),
}
"""Whose plan: held experts and number of nodes -> moves."""


def plan_of(policy: str) -> Plan:
    """As the engine plans that a policy is of; vLLM's for those that belong to none."""
    longest = max((name for name in PLANS if policy.startswith(name)), key=len, default="vllm")
    return PLANS[longest]


def free_batches(moves: Sequence[Move]) -> list[list[tuple[int, int, list[int]]]]:
    """vLLM's batches without contention: in none of them is a rank an end of two flows.

    returns  batches of (source, target, experts), flows in order of first appearance
    """
    flows: dict[tuple[int, int], list[int]] = {}
    for move in moves:
        flows.setdefault((move.source, move.target), []).append(move.expert)
    batches: list[list[tuple[int, int, list[int]]]] = []
    busy: list[set[int]] = []
    for (source, target), experts in flows.items():
        at = next((i for i, ends in enumerate(busy) if not {source, target} & ends), len(busy))
        if at == len(busy):
            batches.append([])
            busy.append(set())
        batches[at].append((source, target, experts))
        busy[at] |= {source, target}
    return batches


class Fill(NamedTuple):
    """How a rank's slots of a layer get their experts under vLLM, by local row.

    unchanged   rows that keep theirs
    local       rows copied from another row of the rank
    remote      the first row of each expert received
    copied      further rows of an expert received, filled from its first
    """

    unchanged: list[int]
    local: list[int]
    remote: list[int]
    copied: list[int]


def fill(of: Held, rank: int) -> Fill:
    """What a rank does with its rows."""
    found, old = Fill([], [], [], []), of.old[rank]
    received: set[int] = set()
    for row, expert in enumerate(of.new[rank]):
        if expert == EMPTY:
            continue
        if old[row] == expert:
            found.unchanged.append(row)
        elif expert in old:
            found.local.append(row)
        elif expert in received:
            found.copied.append(row)
        else:
            received.add(expert)
            found.remote.append(row)
    return found
