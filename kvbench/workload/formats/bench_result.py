"""Results of `vllm bench serve --save-detailed` and `sglang.bench_serving --output-details` -> Requests.

    input_lens, output_lens   tokens of each request
    start_times               seconds (vLLM); without them arrivals are drawn
    errors                    a text for each failed request: left out

The load of that run as a workload. Measured latencies are not replayed: a modelled run is compared with them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.errors import UsageError
from ...core.requests import MAX_STREAM_TOKENS, Requests
from ..clock import from_first_ns
from ..format import Format, names
from ..json_columns import Row
from ..options import TraceOptions
from ..prompts import apart
from ..records import records
from ..rows import shown
from ..source import Trace
from ..table import request_table
from .aiperf_profile import NOT_READ


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests in order of their start. UsageError: several results, one without details, lists that do not fit."""
    found = records(trace)
    if len(found.rows) > 1:
        raise UsageError(f"{trace.name}: holds {len(found.rows)} results; copy the line of one into a file of its own")
    found.faults.kept(False)
    place = found.faults.where(0)
    result = found.rows[0]
    if "input_lens" not in result:
        raise UsageError(f"{place}: is a result without its requests; save it with --save-detailed (--output-details)")
    prompt, output = _list(result, "input_lens", place), _list(result, "output_lens", place, _count(result))
    start = _list(result, "start_times", place, prompt.size) if result.get("start_times") else np.zeros(prompt.size)
    errors = result.get("errors") or [""] * prompt.size
    if not isinstance(errors, list) or len(errors) != prompt.size:
        raise UsageError(f"{place}: errors is no list of {prompt.size} texts")
    served = np.array([not error for error in errors], np.bool_) & (output > 0) & (prompt > 0)
    if not served.any():
        raise UsageError(f"{place}: none of the {prompt.size} requests was served; name another file")
    order = np.flatnonzero(served)
    order = order[np.argsort(start[order], kind="stable")][: options.num_prompts or None]
    prompt_tokens = prompt[order].astype(np.int64)
    failed = int(np.count_nonzero(~served))
    return request_table(
        order.size,
        arrival_ns=from_first_ns(start[order], "s", trace.name),
        prompt_tokens=prompt_tokens,
        output_tokens=output[order].astype(np.int64),
        **apart(prompt_tokens),
        notes=(*found.notes, *((f"{failed} of {prompt.size} requests failed: left out",) if failed else ()), NOT_READ),
    )


FORMAT = Format(
    read, keys=names("input_lens output_lens", "request_throughput output_throughput total_input_tokens"), timed=False
)


def _count(result: Row) -> int:
    return len(result["input_lens"]) if isinstance(result["input_lens"], list) else 0


def _list(result: Row, name: str, place: str, size: int = 0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(n,) numbers from 0. UsageError: it is no such list, or not of `size` (0: any from 1)."""
    values = result.get(name)
    if not isinstance(values, list) or not values or any(type(v) not in (int, float) for v in values):
        raise UsageError(f"{place}: {name} is {shown(values)}, a list of numbers is wanted")
    found = np.array([min(v, 2**62) for v in values], np.float64)
    limit = np.inf if name == "start_times" else MAX_STREAM_TOKENS
    whole = name == "start_times" or (found == np.rint(found)).all()
    if not np.isfinite(found).all() or (found < 0).any() or (found >= limit).any() or not whole:
        raise UsageError(f"{place}: {name} holds what is no number of tokens or seconds")
    if size and found.size != size:
        raise UsageError(f"{place}: {name} has {found.size} values for {size} requests")
    return found
