"""The bookkeeping of wrong rows of a trace, and what every format holds to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import MAX_STREAM_TOKENS
from .options import TraceOptions

I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]

_LEFT_OUT = "left out "
_MOST_NAMES = 12


class Faults:
    """Which rows are wrong, and the first of them in words.

    size    number of rows, n
    where   the place of a row in words: `path:line`, or `path: requests[3]`
    bad     (n,) rows found wrong so far
    """

    def __init__(self, size: int, where: Callable[[int], str]) -> None:
        self.where = where
        self.bad: Mask = np.zeros(size, np.bool_)
        self._first = size
        self._text = ""

    @classmethod
    def of_lines(cls, path: str, numbers: I64) -> Self:
        """Rows that are the lines of a file; numbers: (n,) from 1."""
        return cls(numbers.size, lambda i: f"{path}:{numbers[i]}")

    def mark(self, wrong: Mask, say: Callable[[int], str]) -> None:
        """Add rows; `say` gives the words for a row. What a row was marked with first stays."""
        wrong = wrong & ~self.bad
        if not wrong.any():
            return
        index = int(np.argmax(wrong))
        if index < self._first:
            self._first, self._text = index, say(index)
        self.bad |= wrong

    def mark_all(self, texts: dict[int, str]) -> None:
        """Add rows by index, each with its words."""
        wrong = np.zeros(self.bad.size, np.bool_)
        wrong[list(texts)] = True
        self.mark(wrong, lambda i: texts[i])

    def kept(self, skip: bool, advice: str = "mend it, or use --skip-bad-rows") -> Mask:
        """(n,) rows to go on with. UsageError on the first wrong row unless `skip`, or when all are wrong."""
        if not self.bad.any():
            return ~self.bad
        count = int(np.count_nonzero(self.bad))
        if skip and count < self.bad.size:
            return ~self.bad
        if skip:
            raise UsageError(f"{self.first_fault()}; none of the {count} rows is usable")
        others = f" (and {count - 1} more)" if count > 1 else ""
        raise UsageError(f"{self.first_fault()}{others}; {advice}")

    def first_fault(self) -> str:
        return f"{self.where(self._first)}: {self._text}"

    def note(self) -> tuple[str, ...]:
        """What was left out, for Requests.notes."""
        count = int(np.count_nonzero(self.bad))
        if count == 0:
            return ()
        return (f"{_LEFT_OUT}{count} of {self.bad.size} rows; the first: {self.first_fault()}",)


def bad_rows(notes: Iterable[str]) -> int:
    """How many rows the notes of a workload say were left out."""
    told = (note.removeprefix(_LEFT_OUT) for note in notes if note.startswith(_LEFT_OUT))
    return sum(int(text.partition(" ")[0]) for text in told)


def mark_lengths(faults: Faults, prompt: NDArray[np.float64], output: NDArray[np.float64]) -> None:
    """Lengths that no request can have. An output of 0 is left to the engine, which refuses it."""
    limit = MAX_STREAM_TOKENS - 1
    faults.mark(prompt < 1, lambda i: f"the prompt has {prompt[i]:.0f} tokens, it needs at least 1")
    faults.mark(prompt > limit, lambda i: f"the prompt has {prompt[i]:.0f} tokens, the limit is {limit}")
    faults.mark(output < 0, lambda i: f"the output has {output[i]:.0f} tokens, which is negative")
    faults.mark(output > limit, lambda i: f"the output has {output[i]:.0f} tokens, the limit is {limit}")


def in_time(
    faults: Faults, time: NDArray[np.float64] | I64, options: TraceOptions, timed: Mask | None = None
) -> tuple[I64, tuple[str, ...]]:
    """(kept,) the good rows in order of time, and a note if that is not the file's: a UsageError without trace.sort.

    time    (n,) in any unit, no NaN in a good row
    timed   (n,) rows whose time is their own; that of the others only says where sorting puts them. None: all
    """
    kept = np.flatnonzero(faults.kept(options.skip_bad_rows))
    own = time[kept] if timed is None else np.where(timed, time, -np.inf)[kept]
    late = np.flatnonzero((own < np.maximum.accumulate(own)) & (own > -np.inf))
    if late.size == 0:
        return kept[: options.num_prompts or None], ()
    if not options.sort:
        count = f" (as those of {late.size - 1:,} more of {kept.size:,} rows)" if late.size > 1 else ""
        raise UsageError(
            f"{faults.where(kept[late[0]])}: its time is before that of an earlier row{count}; "
            "trace.sort=true sorts rows by time"
        )
    order = kept[np.argsort(time[kept], kind="stable")]
    said = f"{late.size:,} of {kept.size:,} rows came after one that is later: sorted by time"
    return order[: options.num_prompts or None], (said,)


def unread_note(names: Iterable[str], read: Iterable[str]) -> tuple[str, ...]:
    """The columns of a file that nothing is made of."""
    known = set(read)
    left = [name for name in dict.fromkeys(names) if name not in known]
    if not left:
        return ()
    more = f" and {len(left) - _MOST_NAMES} more" if len(left) > _MOST_NAMES else ""
    listed = ", ".join(name if name.isprintable() and len(name) <= 40 else shown(name) for name in left[:_MOST_NAMES])
    return (f"not read: {listed}{more}",)


def take_ragged(values: I64, counts: I64, order: I64) -> I64:
    """Groups of `counts` values each, in another order (or only some of them)."""
    starts = np.cumsum(counts) - counts
    taken = counts[order]
    shift = starts[order] - (np.cumsum(taken) - taken)
    return values[np.arange(int(taken.sum())) + np.repeat(shift, taken)]


def shown(value: object) -> str:
    """A value from a file in an error message: short, on one line."""
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
