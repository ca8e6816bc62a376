"""What predictions from each kind of step times have been off by, where that was seen, and how to see it again.

The figures are written down here from `kvbench validate`; of a kind that is not here none is known,
and a run says so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownError:
    """What a method was off by.

    figures   "TPOT +-4 % (median)"
    seen      on what
    command   what prints them
    note      what was chosen on these rows
    devices   on which it was seen, where others may be further off
    """

    figures: str
    seen: str
    command: str
    note: str = ""
    devices: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.figures} on {self.seen}"


KNOWN_ERRORS: dict[str, KnownError] = {
    "kernels": KnownError(
        "TPOT +-4.4 %, TTFT +-15 % (medians, client assumed)",
        "139 deployments",
        "kvbench validate DIR",
        "host times of vLLM 0.12 and SGLang 0.5.6, its output stage: chosen on these rows; the client is assumed",
    ),
    "profile": KnownError(
        "TPOT -0.3 %, TTFT +1.6 % (means)",
        "one run of vLLM; two replicas in lockstep: -1 %, +2 %",
        "kvbench validate DIR",
    ),
    "roofline": KnownError(
        "TPOT +-3.9 %, TTFT +-15 % (medians, client assumed)",
        "139 deployments on H100 and H200",
        "kvbench validate DIR --set costs.silicon=false",
        "as for kernels",
        ("h100", "h200"),
    ),
}
"""Kind of step times (Origin.kind) -> error."""

NONE_KNOWN = "none known"


def known_error(kind: str, device: str, own: str = "") -> str:
    """What a reader is told: the error that a source brings along, that of its kind, or that none is known.

    device   whose step times they are, by its name here
    """
    if own or kind not in KNOWN_ERRORS:
        return own or NONE_KNOWN
    known = KNOWN_ERRORS[kind]
    if known.devices and device not in known.devices:
        return f"not known on {device}; elsewhere the same method had {known}"
    return str(known)
