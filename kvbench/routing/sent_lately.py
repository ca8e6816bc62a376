"""How many requests a router has sent to an engine within the last so many seconds: its request rate.

source: vLLM's production stack, which compares engines by requests per second where nothing else decides
"""

from __future__ import annotations

import numpy as np

from ..core.jit import jit
from ..kernels.rows import doubled
from .router import SENT_LATELY


@jit
def note(router, place, now):
    """One more was sent; place: of Router.load."""
    if router.num_sends == router.sends.shape[0]:
        _make_room(router)
    row = router.sends[router.num_sends]
    row[0], row[1] = now, place
    router.num_sends += 1
    router.load[place, SENT_LATELY] += 1


@jit
def _make_room(router):
    """Those that are forgotten leave the list; it grows where that is less than half of it."""
    kept = router.num_sends - router.first_send
    if 2 * kept > router.sends.shape[0]:
        router.sends = doubled(router.sends)
    for i in range(kept):
        for column in range(2):
            router.sends[i, column] = router.sends[router.first_send + i, column]
    router.first_send, router.num_sends = np.int64(0), kept


@jit
def forget(router, now):
    """What is older than the window counts no more."""
    while router.first_send < router.num_sends:
        row = router.sends[router.first_send]
        if row[0] >= now - router.rules.window_ns:
            return
        router.load[row[1], SENT_LATELY] -= 1
        router.first_send += 1
