"""Bailian (Qwen) traces, JSON Lines -> Requests.

    timestamp                     SECONDS from the start
    input_length, output_length   tokens
    hash_ids                      one id for each 16 tokens of the prompt, the last one for what is left; a file without
                                  them is one of lengths
    chat_id, parent_chat_id       a turn and the one before it; -1 opens a chat
    turn                          from 1; not read, rows are in order of time

Every row has a time of its own and is replayed at it. A child need not extend the ids of its parent: thinking is
stripped between turns, and the last block of a prompt changes its id when the answer fills it.
"""

from __future__ import annotations

import numpy as np

from ...core.requests import NONE, Requests
from ..clock import LARGEST_TIME, from_first_ns, unit_of
from ..format import Format, names
from ..json_columns import number_column, numbered, turns
from ..options import TraceOptions
from ..outputs import filled
from ..rows import I64, in_time, mark_lengths, unread_note
from ..sessions import DELTA, WHOLE, accumulated, turns_taken
from ..source import Trace
from ..table import request_table
from .mooncake import NO_IDS, ids_of, mark_coverage, prompt_columns, rows_and_ids

READ = ("timestamp", "input_length", "output_length", "hash_ids", "chat_id", "parent_chat_id")
BLOCK_TOKENS = 16


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file. UsageError on wrong rows, unless they are skipped."""
    rows, texts, faults, notes = rows_and_ids(trace, options)
    block = options.block_tokens or BLOCK_TOKENS
    prompt = number_column(rows, ("input_length",), faults)
    output = number_column(rows, ("output_length",), faults, required=False)
    time = number_column(rows, ("timestamp",), faults, whole=False, most=LARGEST_TIME)
    chat = number_column(rows, ("chat_id",), faults)
    parent = number_column(rows, ("parent_chat_id",), faults, required=False, signed=True)
    output, defaults = filled(output, faults, options, "output_length")
    mark_lengths(faults, prompt, output)
    ids = ids_of(rows, texts, faults)
    if ids:
        mark_coverage(faults, prompt, ids[1], block)
    kept, sorted_note = in_time(faults, time, options)
    unit, unit_note = unit_of(time[kept], "s", options, trace)
    parent = np.where(np.isnan(parent), NONE, parent)
    session = numbered(_roots(chat[kept].astype(np.int64), parent[kept].astype(np.int64)))
    turn, before = turns(session)
    output_tokens = output[kept].astype(np.int64)
    prompts = prompt_columns(prompt[kept].astype(np.int64), ids, kept, block)
    if turns_taken(before, WHOLE, "of the format", options, trace) == DELTA:
        prompts = accumulated(prompts, before, output_tokens)
    return request_table(
        kept.size,
        arrival_ns=from_first_ns(time[kept], unit, trace.name),
        output_tokens=output_tokens,
        session_id=session,
        turn=turn,
        **prompts,
        notes=(*faults.note(), *notes, *sorted_note, *unit_note, *defaults, *(() if ids else (NO_IDS,)),
               *unread_note((name for row in rows for name in row), READ)),
    )  # fmt: skip


FORMAT = Format(read, keys=names("chat_id hash_ids input_length", "chat_id input_length output_length timestamp"))


def _roots(chat: I64, parent: I64) -> list[int]:
    """(n,) the turn that opened each row's chat; a parent that is not in the file before it opens one too."""
    root: dict[int, int] = {}
    found = []
    for own, before in zip(chat.tolist(), parent.tolist(), strict=True):
        root[own] = root.get(before, own) if before != NONE else own
        found.append(root[own])
    return found
