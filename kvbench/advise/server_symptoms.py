"""Which symptoms a server's own figures show, which they do not, what cannot be told from them. Nothing is simulated.

Buckets of a histogram are wide: a ratio is told only where all values that they allow lie on one side of the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, pstdev

from ..report.server import CANNOT_TELL, NOT_SHOWN, SHOWN, Finding
from .server_view import ServerView

_TRACE = "replay the same requests: kvbench advise --trace FILE --from COMMAND"


def waiting(v: ServerView, places: int | None) -> Finding:
    """Requests wait: for memory, for a place, or for the device."""
    name, title = "waiting", "requests wait before their prefill"
    if v.queue is None or v.ttft is None:
        if v.beyond is None:
            return _cannot(name, title, "the file has no time in the queue", _detail(v))
        text = f"{_percent(v.beyond)} of TTFT is more than prompts of that length take at their fastest"
        return Finding(name, title, _state(v.beyond >= 0.5), (text,), "what they wait for: read /metrics of the server")
    share = v.queue.sum / v.ttft.sum if v.ttft.sum else 0.0
    lines = [f"{_percent(share)} of TTFT is time in the queue (mean {_ms(v.queue.mean)} of {_ms(v.ttft.mean)})"]
    if v.waiting is not None and v.running is not None:
        lines.append(f"when read, {v.waiting:.0f} waited and {v.running:.0f} ran")
    missing = ""
    if share >= 0.1 and places is not None and v.running is not None and v.waiting:
        lines.append(
            f"{places} may run at once: " + ("that is the limit" if v.running >= places else "there are places")
        )
    elif share >= 0.1:
        missing = "whether for a place or for the device: give the server's command too (--from)"
    return Finding(name, title, _state(share >= 0.1), tuple(lines), missing)


def memory_limits(v: ServerView, places: int | None) -> Finding:
    """KV is full while requests wait, or requests lose their memory."""
    name, title = "memory-limits", "KV memory limits how many run at once"
    if v.usage is None and v.preemptions is None:
        return _cannot(name, title, "the file says nothing of memory", "read /metrics of the server")
    lines, ill = [], False
    if v.preemptions is not None and v.requests:
        rate = v.preemptions / v.requests
        lines.append(f"{v.preemptions:,.0f} preemptions among {v.requests:,.0f} requests ({_percent(rate)})")
        ill = rate >= 0.01
    if v.usage is not None:
        lines.append(f"{_percent(v.usage)} of KV in use when read, {v.waiting or 0:.0f} requests waiting")
        ill = ill or (v.usage >= 0.9 and bool(v.waiting))
    return Finding(name, title, _state(ill), tuple(lines), "" if ill else "usage between two readings")


def prefill_stalls(v: ServerView, places: int | None) -> Finding:
    """The tail of the gaps between tokens is far above their middle."""
    name, title = "prefill-stalls", "long prompts stall those who decode"
    if v.itl is None:
        return _cannot(name, title, "the file has no gaps between tokens", _detail(v))
    (p50_low, p50), (p99, p99_high) = v.itl.between(0.5), v.itl.between(0.99)
    least, most = (p99 / p50 if p50 else 0.0), (p99_high / p50_low if p50_low else math.inf)
    if _exact(v):
        least = most = p99_high / p50
    text = f"ITL p50 {_range(p50_low, p50)}, p99 {_range(p99, p99_high)}, mean {_ms(v.itl.mean)}"
    if _exact(v):
        text = f"ITL p50 {_ms(p50)}, p99 {_ms(p99_high)} ({least:.1f} times), mean {_ms(v.itl.mean)}"
    state = SHOWN if least >= 4 else NOT_SHOWN if most < 4 else CANNOT_TELL
    missing = "" if state != CANNOT_TELL else "buckets are too wide: run a benchmark with details against the server"
    return Finding(name, title, state, (text,), missing)


def prefixes_again(v: ServerView, places: int | None) -> Finding:
    """A server knows what it found, not what could have been found."""
    name, title = "prefixes-again", "the same prefixes are computed again"
    if not v.asked:
        return _cannot(name, title, "the file says nothing of the prefix cache", _TRACE)
    text = f"{_percent((v.hits or 0) / v.asked)} of prompt tokens were found in the cache"
    return Finding(name, title, CANNOT_TELL, (text,), f"what an endless cache would find: {_TRACE}")


def idle_device(v: ServerView, places: int | None) -> Finding:
    """Steps without a graph are launched kernel by kernel."""
    name, title = "idle-device", "the device waits for the host"
    if v.eager is None:
        return _cannot(name, title, "the file says nothing of the device's time", f"{_TRACE}, or profile the server")
    text = f"{_percent(v.eager)} of the forward passes ran without a captured graph"
    state = SHOWN if v.eager >= 0.3 else CANNOT_TELL
    return Finding(name, title, state, (text,), "the host's time between steps: profile the server")


def kv_bandwidth(v: ServerView, places: int | None) -> Finding:
    """Nothing that a server shows tells reading weights from reading KV."""
    return _cannot("kv-bandwidth", "decode is bound by reading KV", "the file says nothing of kernels", _TRACE)


def routing(v: ServerView, places: int | None) -> Finding:
    """Engines that share a load get unequal parts of it."""
    name, title = "routing-imbalance", "engines get unequal load"
    loads = list(v.per_engine.values())
    if len(loads) < 2 or not sum(loads):
        return _cannot(name, title, "the file is of one engine", "read /metrics of all of them")
    spread = pstdev(loads) / fmean(loads)
    text = f"requests of {len(loads)} engines: {', '.join(f'{n:,.0f}' for n in loads)} (CV {spread:.2f})"
    return Finding(name, title, _state(spread >= 0.2), (text,))


def ranks_wait(v: ServerView, places: int | None) -> Finding:
    """The busiest rank of the experts sets the pace."""
    name, title = "ranks-wait", "expert ranks wait for the busiest one"
    if v.balance is None:
        return _cannot(name, title, "the file has no balancedness", "SGLANG_ENABLE_EPLB_BALANCEDNESS_METRIC=1 (SGLang)")
    text = f"balancedness {v.balance:.2f}: mean over largest of the ranks' tokens"
    return Finding(name, title, _state(v.balance <= 0.8), (text,))


def transfers(v: ServerView, places: int | None) -> Finding:
    """KV on its way between engines."""
    name, title = "transfers-exposed", "requests wait for KV to arrive"
    if v.transfer is None or v.ttft is None:
        return _cannot(name, title, "the file has no transfers", "")
    share = v.transfer / v.ttft.mean if v.ttft.mean else 0.0
    text = f"the last transfer took {_ms(v.transfer)}, {_percent(share)} of a mean TTFT"
    return Finding(name, title, _state(share >= 0.1), (text,), "how much of it computation hides")


RULES: tuple[Callable[[ServerView, int | None], Finding], ...] = (
    *(waiting, memory_limits, prefill_stalls, prefixes_again, idle_device, kv_bandwidth),
    *(routing, ranks_wait, transfers),
)


def findings(view: ServerView, places: int | None) -> tuple[Finding, ...]:
    """Those that are shown first. places: sequences that may run at once, where the server's command said it."""
    found = [rule(view, places) for rule in RULES]
    return tuple(sorted(found, key=lambda f: (SHOWN, NOT_SHOWN, CANNOT_TELL).index(f.state)))


def _exact(v: ServerView) -> bool:
    return v.engine not in ("vLLM", "SGLang")


def _detail(v: ServerView) -> str:
    return "--save-detailed (vllm bench serve), --output-details (sglang.bench_serving)" if _exact(v) else _TRACE


def _cannot(name: str, title: str, why: str, missing: str) -> Finding:
    return Finding(name, title, CANNOT_TELL, (why,), missing)


def _state(shown: bool) -> str:
    return SHOWN if shown else NOT_SHOWN


def _range(low: float, high: float) -> str:
    return f"{1e3 * low:g} .. {1e3 * high:g} ms" if math.isfinite(high) else f"above {1e3 * low:g} ms"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f} ms"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
