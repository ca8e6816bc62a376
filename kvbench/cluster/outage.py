"""Storage that cannot be reached for a time: what moves over its links meanwhile fails, and requests compute instead.

Python sets the links down and up again at the engines' step boundaries, as it flushes caches: a run without an outage
compiles and tests nothing for it.
"""

from __future__ import annotations

from ..core.jit import entry
from ..engine.settings import EngineSettings
from ..scheduler.state import Engine


class Outage:
    """Of the storage of a run. times: ns at which its links go down and come up; none without one."""

    def __init__(self, settings: EngineSettings) -> None:
        store = settings.tiers.store
        self.times: tuple[int, ...] = store.outage_ns if settings.tiers.on and store.blocks else ()

    def carry_out(self, engine: Engine, index: int) -> None:
        """The first of its times, or the second, has come."""
        _set_links(engine, index)


@entry
def _set_links(e, up):
    e.links.up[e.tiers.store_down] = e.links.up[e.tiers.store_up] = up
