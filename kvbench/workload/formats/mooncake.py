"""Mooncake traces (JSON Lines, with the aliases of NVIDIA Dynamo) -> Requests.

    timestamp | created_time      ms from the start of the trace; where no row has one, arrivals are drawn
    input_length | input_tokens, output_length | output_tokens      tokens
    hash_ids      one id for each block of the prompt, the last one for what is left: ceil(length / block); where no row
                  has them, the file is one of lengths, and no prompts are shared
    session_id    with a delay and no timestamp, a row arrives `delay` after its predecessor's end
    delay | delay_ms      ms
    priority      Dynamo's: higher is more urgent; Requests.priority is its negative

Rows of a session are what is new (so AIPerf writes them), unless one of them begins with the ids of the one before it,
which no new text does: then each is all of its prompt.

Nearly all of a file is ids: they are cut out of the text and parsed as one list of numbers, and the JSON parser sees
what is left (twice as fast as JSON alone).
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from ...core.requests import NONE, Requests
from ...core.units import NS_PER_MS
from ..clock import LARGEST_TIME, NS_OF_UNIT, from_first_ns, unit_of
from ..csv_table import first_lines
from ..format import Format, names
from ..json_columns import F64, Row, number_column, one_object, session_column, turns
from ..options import TraceOptions
from ..outputs import filled
from ..prompts import apart, of_ids
from ..records import records
from ..rows import I64, Faults, Mask, in_time, mark_lengths, take_ragged, unread_note
from ..sessions import DELTA, WHOLE, accumulated, begins_alike, turns_taken
from ..source import Trace
from ..table import request_table

BLOCK_TOKENS = 512

TIME = ("timestamp", "created_time")
INPUT = ("input_length", "input_tokens")
OUTPUT = ("output_length", "output_tokens")
DELAY = ("delay", "delay_ms")
READ = (*TIME, *INPUT, *OUTPUT, *DELAY, "hash_ids", "session_id", "priority")

NO_IDS = "no row has hash_ids: lengths alone, so no prompts are shared"

_PLAIN_IDS = re.compile(r'"hash_ids" *: *\[([0-9, ]*)\]')  # in JSON text this can only be a key
_POWERS_OF_TEN = 10 ** np.arange(1, 19)


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file. UsageError on wrong rows (unless they are skipped), and on times of a doubtful unit."""
    rows, texts, faults, notes = rows_and_ids(trace, options)
    block = options.block_tokens or BLOCK_TOKENS
    prompt = number_column(rows, INPUT, faults)
    output = number_column(rows, OUTPUT, faults, required=False)
    time = number_column(rows, TIME, faults, required=False, whole=False, most=LARGEST_TIME)
    delay = number_column(rows, DELAY, faults, required=False, whole=False)
    priority = number_column(rows, ("priority",), faults, required=False, signed=True)
    session = session_column(rows, faults)
    output, defaults = filled(output, faults, options, OUTPUT[0])
    mark_lengths(faults, prompt, output)
    timed = ~np.isnan(time)
    ids = ids_of(rows, texts, faults)
    if ids:
        mark_coverage(faults, prompt, ids[1], block)
    if any(row.get(name) is not None for row in rows for name in TIME):
        _mark_times(faults, timed, delay, session)
    else:
        trace.found["untimed"] = "no row has a timestamp"
    kept, sorted_note = in_time(faults, _time_of_openers(time, session), options, timed)
    unit, unit_note = unit_of(time[kept], "ms", options, trace)
    turn, before = turns(session[kept])
    after = np.where(timed[kept], NONE, before)
    waits = after != NONE
    delay_ns = NS_OF_UNIT[options.time_unit] if options.time_unit != "auto" else NS_PER_MS
    output_tokens = output[kept].astype(np.int64)
    prompts = prompt_columns(prompt[kept].astype(np.int64), ids, kept, block)
    whole = begins_alike(prompts, before)
    usual, why = (WHOLE, "rows begin as the one before") if whole else (DELTA, "no row begins as the one before")
    if turns_taken(before, usual, why, options, trace) == DELTA:
        prompts = accumulated(prompts, before, output_tokens)
    return request_table(
        kept.size,
        arrival_ns=np.where(waits, 0, from_first_ns(time[kept], unit, trace.name)),
        output_tokens=output_tokens,
        priority=-np.nan_to_num(priority[kept]).astype(np.int64),
        session_id=session[kept],
        turn=turn,
        after=after,
        think_ns=np.rint(np.nan_to_num(np.where(waits, delay[kept], 0.0)) * delay_ns).astype(np.int64),
        **prompts,
        notes=(*faults.note(), *notes, *sorted_note, *unit_note, *defaults, *(() if ids else (NO_IDS,)),
               *unread_note((name for row in rows for name in row), READ)),
    )  # fmt: skip


FORMAT = Format(read, keys=names("hash_ids", "input_length", "input_length output_length timestamp"))


def prompt_columns(prompt_tokens: I64, ids: tuple[I64, I64] | None, kept: I64, block: int) -> dict[str, Any]:
    """prompt_tokens and segments of the kept rows: by their ids, or apart where the file has none."""
    if ids is None:
        return {"prompt_tokens": prompt_tokens, **apart(prompt_tokens)}
    flat, counts = ids
    flat = flat if np.array_equal(kept, np.arange(counts.size)) else take_ragged(flat, counts, kept)
    return {"prompt_tokens": prompt_tokens, **of_ids(flat, counts[kept], prompt_tokens, block)}


def rows_and_ids(trace: Trace, options: TraceOptions) -> tuple[list[Row], list[str | None], Faults, tuple[str, ...]]:
    """The objects of a file, the text of the ids of each where they were cut out, and what there is to say of it."""
    source = trace.single()
    first = source.data.lstrip(b"\xef\xbb\xbf \r\n\t")[:1]
    if first == b"[":
        found = records(trace, options.rows_read)
        return found.rows, [None] * len(found.rows), found.faults, found.notes
    lines, numbers, notes = first_lines(source, options.rows_read)
    faults = Faults.of_lines(source.name, numbers)
    return (*with_ids_apart(lines, faults), faults, notes)


def ids_of(rows: list[Row], texts: list[str | None], faults: Faults) -> tuple[I64, I64] | None:
    """All ids in one array and how many each row has; None where no row of the file has any."""
    if all(row.get("hash_ids") is None for row in rows):
        return None
    return id_columns(rows, texts, faults)


def with_ids_apart(lines: list[str], faults: Faults) -> tuple[list[Row], list[str | None]]:
    """One object a line, and the text of its ids where they were cut out (the object holds [] then).

    A line that is no object is marked and becomes {}.
    """
    parse, cut = json.JSONDecoder().raw_decode, _PLAIN_IDS.search
    rows: list[Row] = []
    texts: list[str | None] = []
    wrong: dict[int, str] = {}
    for index, line in enumerate(lines):
        found = cut(line) if line.count('"hash_ids"') == 1 else None
        if found:
            line = line[: found.start(1)] + line[found.end(1) :]
        row, fault = one_object(parse, line)
        if fault:
            wrong[index] = fault
        rows.append(row)
        texts.append(found[1] if found and "hash_ids" in row else None)
    faults.mark_all(wrong)
    return rows, texts


def _mark_times(faults: Faults, timed: Mask, delay: F64, session: I64) -> None:
    """Rows of a timed file without a time: they need a delay, and an earlier row of their session with a time."""
    missing = ~timed & (np.isnan(delay) | (session == NONE))
    faults.mark(missing, lambda i: f"has no {' or '.join(TIME)} (nor a session_id with a delay)")
    waits = ~timed & ~faults.bad
    if not waits.any():
        return
    opening = np.full(int(session.max()) + 1, session.size, np.int64)
    openers = np.flatnonzero(timed & ~faults.bad & (session != NONE))
    np.minimum.at(opening, session[openers], openers)
    late = waits & (opening[session] > np.arange(session.size))
    faults.mark(late, lambda i: "waits for an earlier row of its session, but there is none with a timestamp")


def _time_of_openers(time: F64, session: I64) -> F64:
    """(n,) a row's own time, or that of the last row of its session before it that has one; 0 without either."""
    filled_in = np.where(np.isnan(time), 0.0, time)
    latest: dict[int, float] = {}
    for i in np.flatnonzero(np.isnan(time) | (session != NONE)).tolist():
        own = int(session[i])
        if np.isnan(time[i]):
            filled_in[i] = latest.get(own, 0.0)
        else:
            latest[own] = float(time[i])
    return filled_in


def id_columns(rows: list[Row], texts: list[str | None], faults: Faults) -> tuple[I64, I64]:
    """All ids in one array (those from 2**63 wrapped) and how many each row has."""
    plain = _plain_ids(texts)
    return plain if plain is not None else _odd_ids(rows, texts, faults)


def _plain_ids(texts: list[str | None]) -> tuple[I64, I64] | None:
    """The ids of rows that all hold a plain list; None when a row does not or a number is odd."""
    given = [text for text in texts if text]
    joined = ",".join(given)
    well_formed = (
        len(given) == len(texts)
        and joined[0] != ","
        and joined[-1] not in ", "
        and ",," not in joined
        and ", ," not in joined
        and joined.count(" ") == joined.count(", ")
    )
    if not well_formed:
        return None
    counts = np.array([text.count(",") for text in given], np.int64) + 1
    ids = np.fromstring(joined, np.int64, sep=",")
    digits = int(np.searchsorted(_POWERS_OF_TEN, ids, side="right").sum()) + ids.size
    if digits + ids.size - 1 + joined.count(" ") != len(joined) or int(ids.max()) >= 10**18:
        return None  # leading zeros, which JSON forbids, or beyond int64
    return ids, counts


def _odd_ids(rows: list[Row], texts: list[str | None], faults: Faults) -> tuple[I64, I64]:
    """Row by row, with a fault for each that holds no list of ids."""
    lists = [_id_list(row, text) for row, text in zip(rows, texts, strict=True)]
    absent = np.array([row.get("hash_ids") is None for row in rows], np.bool_)
    faults.mark(absent, lambda i: "has no hash_ids")
    wrong = np.array([ids is None for ids in lists], np.bool_)
    faults.mark(wrong, lambda i: "hash_ids is no list of whole numbers from 0 to 2**64 - 1")
    counts = np.array([len(ids or ()) for ids in lists], np.int64)
    flat = [i for ids in lists if ids for i in ids]
    return np.array(flat, np.uint64).astype(np.int64), counts


def _id_list(row: Row, text: str | None) -> list[int] | None:
    ids = row.get("hash_ids")
    if text is not None:
        try:
            ids = json.loads(f"[{text}]")
        except ValueError:
            return None
    if not isinstance(ids, list) or any(type(i) is not int or not 0 <= i < 1 << 64 for i in ids):
        return None
    return ids


def mark_coverage(faults: Faults, prompt: F64, counts: I64, block: int) -> None:
    wanted = np.ceil(prompt / block)
    wrong = counts != wanted
    if not (wrong & ~faults.bad).any():
        return
    hint = _fitting_block(prompt[~faults.bad], counts[~faults.bad])
    faults.mark(
        wrong,
        lambda i: f"{prompt[i]:.0f} tokens are {wanted[i]:.0f} blocks of {block}, not {counts[i]} ids{hint}",
    )


def _fitting_block(prompt: F64, counts: I64) -> str:
    """The block size at which ceil(prompt / block) is right on every row, as advice, if there is one."""
    if (counts < 1).any():
        return ""
    low = int(np.ceil(prompt / counts).max())
    several = counts > 1
    high = int(np.ceil(prompt[several] / (counts[several] - 1)).min(initial=2.0**40)) - 1
    power = 1 << max(low - 1, 0).bit_length()
    if low > high or low < 1 or high >= 1 << 30:
        return ""
    return f" (trace.block_tokens={power if power <= high else low} fits all rows)"
