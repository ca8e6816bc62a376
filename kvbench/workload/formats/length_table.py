"""Length tables of vidur and etalon (CSV) -> Requests.

num_prefill_tokens, num_decode_tokens   tokens
arrived_at                              seconds; without it the trace has no arrivals
num_total_tokens, pd_ratio              not used
"""

from __future__ import annotations

import numpy as np

from ...core.requests import Requests
from ...core.units import NS_PER_S
from ..options import TraceOptions
from ..prompts import apart
from ..rows import mark_lengths, mark_time_order
from ..source import Trace
from ..table import request_table
from .lines import csv_table

COLUMNS = ("num_prefill_tokens", "num_decode_tokens")
TIME = "arrived_at"


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file. UsageError on wrong rows, unless they are skipped."""
    table = csv_table(trace.single(), COLUMNS, options.num_prompts)
    faults = table.faults
    prompt, output = table.whole(COLUMNS[0]), table.whole(COLUMNS[1])
    time_s = table.numbers(TIME) if table.has(TIME) else np.zeros(prompt.size)
    mark_lengths(faults, prompt, output)
    faults.mark(time_s < 0, lambda i: f"{TIME} is {time_s[i]:g}, which is negative")
    mark_time_order(faults, time_s, np.ones(time_s.size, np.bool_))
    kept = faults.kept(options.skip_bad_rows)
    prompt_tokens, times = prompt[kept].astype(np.int64), time_s[kept]
    return request_table(
        prompt_tokens.size,
        arrival_ns=np.rint((times - times[0]) * NS_PER_S).astype(np.int64),
        prompt_tokens=prompt_tokens,
        output_tokens=output[kept].astype(np.int64),
        **apart(prompt_tokens),
        notes=(*faults.note(), *table.notes),
    )
