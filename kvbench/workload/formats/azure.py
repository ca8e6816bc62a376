"""Azure LLM inference traces (CSV of 2023, 2024 and 2025) -> Requests.

TIMESTAMP, ContextTokens, GeneratedTokens; NumImages (2025) is noted: what
images take of a context is not told. A stamp has up to nine fractional
digits (2023 has seven) and may end in a UTC offset (2024 has +00:00). Rows say nothing of shared prefixes:
each prompt is a stream of its own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...core.requests import Requests
from ..clock import stamps
from ..csv_table import csv_table
from ..format import Format
from ..options import TraceOptions
from ..prompts import apart
from ..rows import in_time, mark_lengths
from ..source import Trace
from ..table import request_table

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

IMAGES = "NumImages"


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file. UsageError on wrong rows, unless they are skipped."""
    table = csv_table(trace.single(), COLUMNS, options.rows_read)
    faults = table.faults
    time = stamps(table.column(COLUMNS[0]), faults, COLUMNS[0])
    prompt, output = table.whole(COLUMNS[1]), table.whole(COLUMNS[2])
    mark_lengths(faults, prompt, output)
    images = table.whole(IMAGES) if table.has(IMAGES) else np.zeros(time.size)
    kept, sorted_note = in_time(faults, time.astype(np.int64), options)
    time, prompt_tokens = time[kept], prompt[kept].astype(np.int64)
    return request_table(
        prompt_tokens.size,
        arrival_ns=(time - time[0]).astype(np.int64),
        prompt_tokens=prompt_tokens,
        output_tokens=output[kept].astype(np.int64),
        **apart(prompt_tokens),
        notes=(
            *faults.note(),
            *table.notes,
            *sorted_note,
            *_image_note(images[kept]),
            *table.unread((*COLUMNS, IMAGES)),
        ),
    )


def _image_note(images: NDArray[np.float64]) -> tuple[str, ...]:
    with_some = int(np.count_nonzero(images))
    if with_some == 0:
        return ()
    return (
        f"{with_some:,} of {images.size:,} requests have images, {images.sum():,.0f} in all: encoding takes no time",
    )


FORMAT = Format(read, header=(frozenset(COLUMNS),))
