"""Where names stand in a picture: apart from each other at the ends of lines, and clear of curves within."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .chart import F64


def clear_place(boxes: Sequence[tuple[float, float, float, float, str]], lines: Sequence[F64]) -> str:
    """What the first box says that no line crosses, else the box that is crossed least.

    boxes   (left, top, right, bottom, what it says), the best first; lines (points, 2): x, y of each line's points
    """
    points = np.concatenate([_dense(line) for line in lines]) if lines else np.zeros((0, 2))

    def crossed(box: tuple[float, float, float, float, str]) -> int:
        left, top, right, bottom, _ = box
        x, y = points[:, 0], points[:, 1]
        return int(((x > left - 3) & (x < right + 3) & (y > top - 2) & (y < bottom + 2)).sum())

    return min(boxes, key=crossed)[4]


def _dense(line: F64) -> F64:
    """Points no more than a few pixels apart; gaps of a line are left out."""
    line = line[np.isfinite(line).all(axis=1)]
    if len(line) < 2:
        return line
    steps = np.abs(np.diff(line, axis=0)).max(axis=1)
    at = np.concatenate(([0.0], np.cumsum(steps)))
    where = np.linspace(0, at[-1], int(at[-1] / 3) + 2)
    return np.stack([np.interp(where, at, line[:, 0]), np.interp(where, at, line[:, 1])], axis=1)


def apart(heights: Sequence[float], least: float) -> list[float]:
    """The heights moved so that no two are nearer than `least`: in their order, around where they were, above 0."""
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    groups: list[tuple[float, list[int]]] = []  # (middle, members from below)
    for i in order:
        groups.append((heights[i], [i]))
        while len(groups) > 1 and _bottom(groups[-1], least) < _bottom(groups[-2], least) + least * len(groups[-2][1]):
            (high, above), (low, below) = groups.pop(), groups.pop()
            members = below + above
            groups.append(((low * len(below) + high * len(above)) / len(members), members))
    placed = [0.0] * len(heights)
    free_from = 0.0
    for group in groups:
        bottom = max(_bottom(group, least), free_from)
        for n, i in enumerate(group[1]):
            placed[i] = bottom + n * least
        free_from = bottom + least * len(group[1])
    return placed


def _bottom(group: tuple[float, list[int]], least: float) -> float:
    return group[0] - least * (len(group[1]) - 1) / 2
