"""Mail of an engine: what reaches it is read between two steps.

An engine whose loop reads its inbox between steps sees at the end of a step all that came meanwhile, in order. Ends of
operations have a box of their own, which is read first: what has been copied is free for who asks for memory.
"""

from __future__ import annotations

import numpy as np

from ..core.jit import inline, jit, struct
from ..kernels.rows import doubled

# Kinds. Typed, since every literal would compile a callee of its own.
ACCEPT, LEAVE, CONTROL, LANDED, FIRST = np.arange(5)
# ACCEPT   a sequence is given to it. LEAVE: a sequence is cancelled. LANDED: an operation has ended
# CONTROL  something for Python, which acts between two steps
# FIRST    of an outbox: the first token of a sequence is made

_KIND, _SUBJECT = range(2)


@struct
class Mail:
    """rows: (capacity, 2) kind and subject; those in [next, num) have not been read."""

    rows: "i8[:,::1]"
    next: "i8"
    num: "i8"


def make_mail() -> Mail:
    return Mail(np.zeros((16, 2), np.int64), 0, 0)


@jit
def post(mail, kind, subject):
    """Add a row. The box grows as needed."""
    if mail.num == mail.rows.shape[0]:
        mail.rows = doubled(mail.rows)
    mail.rows[mail.num, _KIND] = kind
    mail.rows[mail.num, _SUBJECT] = subject
    mail.num += 1


@inline
def is_unread(mail):
    return mail.next < mail.num


@inline
def take(mail):
    """The next row: (kind, subject). A box that has been read to its end is empty again."""
    kind, subject = mail.rows[mail.next, _KIND], mail.rows[mail.next, _SUBJECT]
    mail.next += 1
    if mail.next == mail.num:
        mail.next = 0
        mail.num = 0
    return kind, subject
