"""One line of the table before it is measured."""

from __future__ import annotations

from dataclasses import dataclass

from .probes import Probe


@dataclass(frozen=True)
class Entry:
    """A kernel's probe and what it is measured beside.

    limit    the same kind of work at the machine's own speed; None: nothing fits
    target   share of the limit that the kernel is meant to reach, None: none is set
    peer     another implementation of the same; None: not installed
    """

    group: str
    unit: str
    probe: Probe
    threads: int
    limit: Probe | None = None
    target: float | None = None
    peer: Probe | None = None

    @property
    def probes(self) -> tuple[Probe, ...]:
        return tuple(p for p in (self.probe, self.limit, self.peer) if p is not None)
