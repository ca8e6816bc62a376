"""How long a transfer over a link takes."""

from __future__ import annotations

import numpy as np

from ..core.jit import jit

# Columns of memory.links.Links.rates.
SETUP_NS, FRAGMENT_NS, BYTE_NS = range(3)


@jit
def transfer_ns(rates, link, num_bytes, fragments):
    """ns that a link needs for a transfer by itself: set-up + fragments x cost + bytes / bandwidth, rounded once.

    rates      (links, 3) float64 ns. fragments: contiguous pieces that the bytes lie in
    """
    took = rates[link, SETUP_NS] + fragments * rates[link, FRAGMENT_NS] + num_bytes * rates[link, BYTE_NS]
    return np.int64(np.floor(took + 0.5))
