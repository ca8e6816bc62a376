"""What predictions from each kind of step times have been off by, where that was seen, and how to see it again.

The figures are written down here from `kvbench validate`; of a kind that is not here none is known,
and a run says so.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownError:
    """What a method was off by.

    figures   "TPOT 3.2 %, TTFT 11.8 % median error": half of the cases were further off
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


_KERNELS, _DATASHEET = "kvbench validate DIR", "kvbench validate DIR --set costs.silicon=false"
_CHOSEN = "host times of vLLM 0.12 and SGLang 0.5.6, its output stage: chosen on these rows; the client is assumed"
_HOPPER = ("h100", "h200")


def _of_deployments(tpot: float, ttft: float, seen: str, command: str, devices: tuple[str, ...] = ()) -> KnownError:
    figures = f"TPOT {tpot} %, TTFT {ttft} % median error"
    return KnownError(figures, f"{seen} (client assumed)", command, _CHOSEN, devices)


KNOWN_ERRORS: dict[tuple[str, str], KnownError] = {
    ("kernels", "vllm"): _of_deployments(3.2, 11.8, "93 deployments of vLLM", _KERNELS),
    ("kernels", "sglang"): _of_deployments(7.6, 19.4, "46 deployments of SGLang", _KERNELS),
    ("kernels", ""): _of_deployments(4.4, 15.1, "139 deployments", _KERNELS),
    ("roofline", "vllm"): _of_deployments(2.7, 10.1, "93 deployments of vLLM on H100", _DATASHEET, _HOPPER),
    ("roofline", "sglang"): _of_deployments(10.5, 19.8, "46 deployments of SGLang on H200", _DATASHEET, _HOPPER),
    ("roofline", ""): _of_deployments(3.9, 14.7, "139 deployments on H100 and H200", _DATASHEET, _HOPPER),
    ("profile", ""): KnownError(
        "TPOT -0.3 %, TTFT +1.6 % (means)",
        "one run of vLLM; two replicas in lockstep: -1 %, +2 %",
        _KERNELS,
    ),
}
"""(kind of step times (Origin.kind), engine; "": any) -> error."""

NONE_KNOWN = "none known"


def known_error(kind: str, device: str, engine: str = "", own: str = "") -> str:
    """What a reader is told: the error that a source brings along, that of its kind, or that none is known.

    device   whose step times they are, by its name here
    engine   "vllm", "sglang": where that of its deployments is known by itself
    """
    known = KNOWN_ERRORS.get((kind, engine)) or KNOWN_ERRORS.get((kind, ""))
    if own or known is None:
        return own or NONE_KNOWN
    if known.devices and device not in known.devices:
        return f"not known on {device}; elsewhere the same method had {known}"
    return str(known)
