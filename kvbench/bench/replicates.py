"""One configuration under several seeds: replicates, the unit in which decisions are made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from .configure import Configured
from .run import Progress, Result, run

SEED_OPTION = "--seeds"

Configure = Callable[[list[tuple[str, str]]], Configured]
"""From changes (where, "key=value") on top of what the user said to a configuration."""


def seeds_from(first: int, count: int) -> list[int]:
    """`count` seeds in a row."""
    return list(range(first, first + count))


def with_seed(configure: Configure, seed: int) -> Configured:
    """The same configuration under another seed."""
    return configure([(SEED_OPTION, f"seed={seed}")])


def run_seeds(configure: Configure, seeds: Sequence[int], progress: Progress) -> Iterator[Result]:
    """A run for each seed, one after another; all are configured before the first one runs.

    raises  KeyboardInterrupt: a run was interrupted, so what there is does not stand for all seeds
    """
    configured = [with_seed(configure, seed) for seed in seeds]
    for i, one in enumerate(configured):
        result = run(one)
        if not result.record.complete:
            raise KeyboardInterrupt
        yield result
        progress(i + 1, len(seeds))


def same_workload(fingerprints: Sequence[str]) -> bool:
    """Several seeds drew one workload: nothing in it is drawn, and the replicates are none."""
    return len(fingerprints) > 1 and len(set(fingerprints)) == 1
