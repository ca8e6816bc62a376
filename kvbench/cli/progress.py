"""The progress bar: on stderr, and only on a terminal."""

from __future__ import annotations

import sys
from typing import Any

import click


class ProgressBar:
    """Takes (done, total) between slices; a context manager, so that an interrupt leaves a clean line."""

    def __init__(self, quiet: bool, what: str = "sequences") -> None:
        self._what = what
        self._shown = not quiet and sys.stderr.isatty()
        self._bar: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def __call__(self, done: int, total: int) -> None:
        if not self._shown:
            return
        if self._bar is None:
            self._bar = click.progressbar(length=total, label=self._what, file=sys.stderr)
        self._bar.update(done - self._bar.pos)

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.render_finish()
