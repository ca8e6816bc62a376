"""Placement policies by name, each as its engine calls it, and those of a user's own file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..core.errors import UsageError
from ..core.own_file import load_file
from . import ascend, boustrophedon, greedy, swift
from .flashlb import FlashLb
from .layout import F64, I64, Layout, Placement, check_map, placement_of

Policy = Callable[[F64, Layout, I64], Placement]
"""(steps, layers, experts) loads of a window, the layout, (layers, slots) the map before -> placement."""


def _summed(steps: F64) -> F64:
    return steps.sum(0)


def _deepseek(steps: F64, layout: Layout, old: I64) -> Placement:
    return greedy.place(_summed(steps), layout, greedy.DEEPSEEK, greedy.is_hierarchical(layout))


def _global(steps: F64, layout: Layout, old: I64) -> Placement:
    return greedy.place(_summed(steps), layout, greedy.DEEPSEEK, hierarchical=False)


def _sglang(steps: F64, layout: Layout, old: I64) -> Placement:
    return greedy.place(_summed(steps), layout, greedy.SGLANG, greedy.is_hierarchical(layout))


def _sglang_vec(steps: F64, layout: Layout, old: I64) -> Placement:
    return boustrophedon.place(steps, layout, hierarchical=False)


def _vllm(steps: F64, layout: Layout, old: I64) -> Placement:
    return greedy.keep_rows(
        greedy.place(_summed(steps), layout, greedy.VLLM, greedy.is_hierarchical(layout)), old, layout
    )


def _ascend(steps: F64, layout: Layout, old: I64) -> Placement:
    return ascend.place(_summed(steps), layout, old)


def _ascend_swift(steps: F64, layout: Layout, old: I64) -> Placement:
    return swift.place(_summed(steps), layout, old)


POLICIES: dict[str, Policy | type[FlashLb]] = {
    "deepseek": _deepseek,
    "deepseek-global": _global,
    "sglang": _sglang,
    "sglang-vec": _sglang_vec,
    "vllm": _vllm,
    "vllm-ascend": _ascend,
    "vllm-ascend-swift": _ascend_swift,
    "vllm-ascend-flashlb": FlashLb,
}
"""deepseek, sglang, vllm: hierarchical where groups divide among nodes, else global. A class remembers: one a run."""


def policy_named(name: str) -> Policy:
    """A built-in policy, or FILE.py:FUNCTION.

    raises  UsageError that names what is there
    """
    if ".py:" in name:
        return _own(name)
    if name not in POLICIES:
        raise UsageError(f"unknown eplb.policy {name!r}: one of {', '.join(POLICIES)}, or FILE.py:FUNCTION of your own")
    found = POLICIES[name]
    return found() if isinstance(found, type) else found


def _own(name: str) -> Policy:
    """function(load, layout, old) -> (layers, slots) experts; load: (layers, experts) summed over the window."""
    path, _, function = name.rpartition(":")
    found = getattr(load_file("eplb.policy", Path(path)), function, None)
    if not callable(found):
        raise UsageError(f"eplb.policy: no function {function!r} in {path}")

    def place(steps: F64, layout: Layout, old: I64) -> Placement:
        experts = np.asarray(found(_summed(steps), layout, old.copy()))
        if not np.issubdtype(experts.dtype, np.integer):
            raise UsageError(f"eplb.policy: {name} returns {experts.dtype}, not whole numbers of experts")
        whole = np.ascontiguousarray(experts, dtype=np.int64)
        try:
            check_map(whole, layout)
        except UsageError as error:
            raise UsageError(f"eplb.policy: {name}: {error}") from None
        return placement_of(whole)

    return place
