"""Mooncake traces (JSON Lines, with the aliases of NVIDIA Dynamo) -> Requests.

    timestamp | created_time      ms from the start of the trace
    input_length | input_tokens, output_length | output_tokens      tokens
    hash_ids      one id for each block of the prompt, the last one for what is left: ceil(length / block)
    session_id    with a delay and no timestamp, a row arrives `delay` after its predecessor's end
    delay | delay_ms      ms
    priority      Dynamo's: higher is more urgent; Requests.priority is its negative

Other fields (request_id among them) are ignored. Nearly all of a file is ids: they are cut out of the text
and parsed as one list of numbers, and the JSON parser sees what is left (twice as fast as JSON alone).
"""

from __future__ import annotations

import json
import re

import numpy as np

from ...core.errors import UsageError
from ...core.requests import NONE, Requests
from ...core.units import NS_PER_MS
from ..options import TraceOptions
from ..prompts import of_ids
from ..rows import I64, Faults, Mask, mark_lengths, mark_time_order, take_ragged
from ..source import Trace
from ..table import request_table
from .columns import F64, Row, number_column, one_object, session_column, turns
from .lines import first_lines

BLOCK_TOKENS = 512

TIME = ("timestamp", "created_time")
INPUT = ("input_length", "input_tokens")
OUTPUT = ("output_length", "output_tokens")
DELAY = ("delay", "delay_ms")

SECONDS_RATE = 1000.0
SECONDS_ROWS = 10
"""Fractional timestamps that make over 1,000 requests/s, when read as ms, are taken for seconds."""

_PLAIN_IDS = re.compile(r'"hash_ids" *: *\[([0-9, ]*)\]')  # in JSON text this can only be a key
_POWERS_OF_TEN = 10 ** np.arange(1, 19)


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of a file. UsageError on wrong rows (unless they are skipped), and on times that look like seconds."""
    source = trace.single()
    lines, numbers, notes = first_lines(source, options.num_prompts)
    faults = Faults.of_lines(source.name, numbers)
    rows, texts = with_ids_apart(lines, faults)
    block = options.block_tokens or BLOCK_TOKENS
    prompt = number_column(rows, INPUT, faults)
    output = number_column(rows, OUTPUT, faults)
    time_ms = number_column(rows, TIME, faults, required=False, whole=False)
    delay_ms = number_column(rows, DELAY, faults, required=False, whole=False)
    priority = number_column(rows, ("priority",), faults, required=False, signed=True)
    session = session_column(rows, faults)
    mark_lengths(faults, prompt, output)
    _mark_times(faults, time_ms, delay_ms, session)
    ids, counts = id_columns(rows, texts, faults)
    mark_coverage(faults, prompt, counts, block)
    timed = ~np.isnan(time_ms)
    mark_time_order(faults, time_ms, timed)
    _mark_orphans(faults, timed, session)

    kept = np.flatnonzero(faults.kept(options.skip_bad_rows))
    time_ms = time_ms[kept]
    if not options.rate:  # a stated rate makes the unit of the times irrelevant
        notes += check_unit(source.name, time_ms, options.time_scale)
    turn, before = turns(session[kept])
    after = np.where(np.isnan(time_ms), before, NONE)
    waits = after != NONE
    prompt_tokens = prompt[kept].astype(np.int64)
    return request_table(
        kept.size,
        arrival_ns=_ns(np.where(waits, 0.0, time_ms - np.nanmin(time_ms))),
        prompt_tokens=prompt_tokens,
        output_tokens=output[kept].astype(np.int64),
        priority=-np.nan_to_num(priority[kept]).astype(np.int64),
        session_id=session[kept],
        turn=turn,
        after=after,
        think_ns=_ns(np.where(waits, delay_ms[kept], 0.0)),
        **of_ids(kept_ids(ids, counts, kept), counts[kept], prompt_tokens, block),
        notes=(*faults.note(), *notes),
    )


def kept_ids(ids: I64, counts: I64, kept: I64) -> I64:
    """The ids of the rows that are kept."""
    return ids if kept.size == counts.size else take_ragged(ids, counts, kept)


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


def _mark_times(faults: Faults, time_ms: F64, delay_ms: F64, session: I64) -> None:
    missing = np.isnan(time_ms) & (np.isnan(delay_ms) | (session == NONE))
    faults.mark(missing, lambda i: f"has no {' or '.join(TIME)} (nor a session_id with a delay)")


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


def _mark_orphans(faults: Faults, timed: Mask, session: I64) -> None:
    """Rows that wait for a predecessor which is not there, or was left out."""
    waits = ~timed & ~faults.bad
    if not waits.any():
        return
    opening = np.full(int(session.max()) + 1, session.size, np.int64)
    openers = np.flatnonzero(timed & ~faults.bad & (session != NONE))
    np.minimum.at(opening, session[openers], openers)
    late = waits & (opening[session] > np.arange(session.size))
    faults.mark(late, lambda i: "waits for an earlier row of its session, but there is none with a timestamp")


def check_unit(path: str, time_ms: F64, time_scale: float) -> tuple[str, ...]:
    """A note on times that may be seconds. UsageError when fractional ones can be nothing else."""
    times = time_ms[~np.isnan(time_ms)]
    gaps, span_s = times.size - 1, float(times[-1] - times[0]) * time_scale / 1e3
    if times.size < SECONDS_ROWS or span_s == 0 or gaps <= span_s * SECONDS_RATE:
        return ()
    rate = f"{gaps / span_s:,.0f} requests/s"
    if (times != np.rint(times)).any():
        raise UsageError(
            f"{path}: timestamps look like seconds: as ms they make {rate}; "
            "set trace.time_scale=1000, or trace.rate to the rate you want"
        )
    return (f"timestamps make {rate}; if they are seconds, set trace.time_scale=1000",)


def _ns(ms: F64) -> I64:
    return np.rint(ms * NS_PER_MS).astype(np.int64)
