"""Whether this machine can measure: what makes times of the measured clock untrustworthy, and what mends it.

The modelled clock needs none of this: its results are the same on any machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.cache_folder import cache_root, reason_against
from ..core.jit import PLAIN
from .machine import BUSY_LOAD, available_bytes, load_average, numba_threads, processors

GOOD, NOTE, BAD = "ok", "note", "bad"
"""bad: a measured run would not be trustworthy. note: it cannot be told, or it does not matter for every run."""

SYSTEM = Path("/sys")
LEAST_BYTES = 2 << 30
"""Free memory: KV and weights of the default model, and room for Python."""
COARSEST_NS = 1000
"""Of the clock: a short kernel takes some 10 us."""
WIDEST_SPREAD = 0.05
"""Half the distance of the quartiles over the median, of equal work: a quiet machine stays below 2 %."""
_ROUNDS = 60
_SLOWER_FLAGS = ("NUMBA_BOUNDSCHECK", "NUMBA_DEBUG", "NUMBA_OPT", "NUMBA_DISABLE_INTEL_SVML", "NUMBA_CPU_NAME")


@dataclass(frozen=True)
class Check:
    """One finding. mend: what to do about it, "" where there is nothing to do."""

    name: str
    state: str
    found: str
    mend: str = ""


def examine() -> list[Check]:
    """Every check, in the order in which they matter."""
    checks: tuple[Callable[[], Check], ...] = (_load, _steadiness, _governor, _share, _jit, _cache, _memory, _clock)
    return [*(check() for check in checks), _threads()]


def trustworthy(checks: list[Check]) -> bool:
    return not any(check.state == BAD for check in checks)


def _load() -> Check:
    load = load_average()
    found = f"{load:.2f} per processor in the last minute"
    if load > BUSY_LOAD:
        return Check("load", BAD, found, "stop what else is running, wait a minute, and look again")
    return Check("load", GOOD, found)


def _steadiness() -> Check:
    """Equal work, timed again and again, on one thread."""
    times = sorted(_timed_work() for _ in range(_ROUNDS))
    low, middle, high = (times[_ROUNDS * i // 4] for i in (1, 2, 3))
    spread = (high - low) / 2 / middle
    found = f"equal work of {middle / 1e6:.1f} ms varies by {100 * spread:.1f} %"
    if spread > WIDEST_SPREAD:
        return Check(
            "steadiness", BAD, found, "something else is running or the clock rate changes: see load, governor"
        )
    return Check("steadiness", GOOD, found)


def _timed_work() -> int:
    start = time.perf_counter_ns()
    total = 0
    for i in range(50_000):
        total += i
    return time.perf_counter_ns() - start


def _governor() -> Check:
    files = SYSTEM.glob("devices/system/cpu/cpu*/cpufreq/scaling_governor")
    governors = sorted({text for path in files if (text := _read(path))})
    if not governors:
        return Check("governor", NOTE, "not visible here (a virtual machine, a container): ask who runs the host")
    found = ", ".join(governors)
    if governors == ["performance"]:
        return Check("governor", GOOD, found)
    return Check("governor", BAD, found, "sudo cpupower frequency-set -g performance")


def _share() -> Check:
    """Processors that this process may use, and how much of their time."""
    usable, quota = processors(), _quota()
    found = f"{usable} of {os.cpu_count()} usable"
    if quota is not None and quota < usable:
        mend = "give the container whole processors (--cpuset-cpus), or no quota"
        return Check("processors", BAD, f"{found}, {quota:g} processors' time: the rest is throttled away", mend)
    if usable < (os.cpu_count() or 1):
        return Check("processors", NOTE, f"{found} (affinity): set measured.threads to at most {usable}")
    return Check("processors", GOOD, found)


def _quota() -> float | None:
    """Processors' time of the control group; None: no limit."""
    quota, _, period = (_read(SYSTEM / "fs/cgroup/cpu.max") or "max 1").partition(" ")
    return None if quota == "max" else int(quota) / int(period)


def _jit() -> Check:
    if PLAIN:
        return Check("jit", BAD, "NUMBA_DISABLE_JIT is set: times of plain Python", "unset NUMBA_DISABLE_JIT")
    if set_flags := [name for name in _SLOWER_FLAGS if os.environ.get(name)]:
        return Check("jit", BAD, f"{', '.join(set_flags)} set: other machine code", f"unset {' '.join(set_flags)}")
    return Check("jit", GOOD, "compiled for this processor")


def _cache() -> Check:
    """A measured run compiles before it measures, so an unwritable folder costs minutes at each start, not trust."""
    root = cache_root()
    if reason := reason_against(root):
        mend = "set NUMBA_CACHE_DIR to a folder of your own that others cannot write"
        return Check("JIT cache", BAD, f"{root} {reason}: every start compiles anew", mend)
    return Check("JIT cache", GOOD, f"{root} is writable, and by nobody else")


def _memory() -> Check:
    free = available_bytes()
    found = f"{free / 2**30:.1f} GiB free"
    if free < LEAST_BYTES:
        return Check("memory", BAD, found, "free some: below 2 GiB the system may swap while it measures")
    return Check("memory", GOOD, found)


def _clock() -> Check:
    """The smallest step that is seen."""
    step = min(_steps())
    found = f"steps of {step} ns"
    if step > COARSEST_NS:
        return Check("clock", BAD, found, "a coarse clock: look at /sys/devices/system/clocksource (tsc is fine)")
    return Check("clock", GOOD, found)


def _steps() -> Iterator[int]:
    before = time.perf_counter_ns()
    for _ in range(1000):
        while (now := time.perf_counter_ns()) == before:
            pass
        yield now - before
        before = now


def _threads() -> Check:
    numba = numba_threads()
    layer = f"numba's layer ({numba['threading_layer']}, {numba['threads']} threads) is not used"
    return Check("threads", GOOD, f"kernels share work among Python threads, measured.threads of them; {layer}")


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
