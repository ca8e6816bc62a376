"""Bailian (Qwen) traces, JSON Lines -> Requests.

    timestamp                     SECONDS from the start
    input_length, output_length   tokens
    hash_ids                      one id for each 16 tokens of the prompt, the last one for what is left
    chat_id, parent_chat_id       a turn and the one before it; -1 opens a chat
    turn                          from 1

Every row has a time of its own and is replayed at it. A child need not extend the ids of its parent: thinking is
stripped between turns, and the last block of a prompt changes its id when the answer fills it.
"""

from __future__ import annotations

import numpy as np

from ...core.requests import NONE, Requests
from ...core.units import NS_PER_S
from ..options import TraceOptions
from ..prompts import of_ids
from ..rows import I64, Faults, mark_lengths, mark_time_order
from ..source import Trace
from ..table import request_table
from .columns import number_column, numbered, turns
from .lines import first_lines
from .mooncake import id_columns, kept_ids, mark_coverage, with_ids_apart

BLOCK_TOKENS = 16


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file. UsageError on wrong rows, unless they are skipped."""
    source = trace.single()
    lines, numbers, notes = first_lines(source, options.num_prompts)
    faults = Faults.of_lines(source.name, numbers)
    rows, texts = with_ids_apart(lines, faults)
    block = options.block_tokens or BLOCK_TOKENS
    prompt = number_column(rows, ("input_length",), faults)
    output = number_column(rows, ("output_length",), faults)
    time_s = number_column(rows, ("timestamp",), faults, whole=False)
    chat = number_column(rows, ("chat_id",), faults)
    parent = number_column(rows, ("parent_chat_id",), faults, signed=True)
    mark_lengths(faults, prompt, output)
    ids, counts = id_columns(rows, texts, faults)
    mark_coverage(faults, prompt, counts, block)
    mark_time_order(faults, time_s, np.ones(time_s.size, np.bool_))
    kept = np.flatnonzero(faults.kept(options.skip_bad_rows))
    session = numbered(_roots(chat[kept].astype(np.int64), parent[kept].astype(np.int64)))
    prompt_tokens, times = prompt[kept].astype(np.int64), time_s[kept]
    return request_table(
        kept.size,
        arrival_ns=np.rint((times - times[0]) * NS_PER_S).astype(np.int64),
        prompt_tokens=prompt_tokens,
        output_tokens=output[kept].astype(np.int64),
        session_id=session,
        turn=turns(session)[0],
        **of_ids(kept_ids(ids, counts, kept), counts[kept], prompt_tokens, block),
        notes=(*faults.note(), *notes),
    )


def _roots(chat: I64, parent: I64) -> list[int]:
    """(n,) the turn that opened each row's chat; a parent that is not in the file before it opens one too."""
    root: dict[int, int] = {}
    found = []
    for own, before in zip(chat.tolist(), parent.tolist(), strict=True):
        root[own] = root.get(before, own) if before != NONE else own
        found.append(root[own])
    return found
