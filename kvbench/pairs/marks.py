"""Places for first tokens: a sequence has one on each side until its transfer has ended."""

from __future__ import annotations

from ..core.jit import inline


@inline
def take_mark(side, seq):
    side.mark[seq] = side.marks[side.next_mark]
    side.next_mark = (side.next_mark + 1) % side.marks.size
    side.num_marks -= 1


@inline
def give_mark(side, seq):
    """To the end of the line."""
    side.marks[(side.next_mark + side.num_marks) % side.marks.size] = side.mark[seq]
    side.num_marks += 1
