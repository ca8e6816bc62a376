"""Mooncake traces (JSON Lines, with the aliases of NVIDIA Dynamo) -> Rows.

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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import UsageError
from ..core.requests import NONE
from ..core.units import NS_PER_MS
from .rows import I64, Faults, Mask, Rows, mark_lengths, mark_time_order, shown, take_ragged

F64 = NDArray[np.float64]
Row = dict[str, Any]

BLOCK_TOKENS = 512

TIME = ("timestamp", "created_time")
INPUT = ("input_length", "input_tokens")
OUTPUT = ("output_length", "output_tokens")
DELAY = ("delay", "delay_ms")

MAX_NUMBER = 2.2e12
"""Epoch milliseconds of the year 2039: no number of a row is larger, and no time leaves the clock."""

SECONDS_RATE = 1000.0
SECONDS_ROWS = 10
"""Fractional timestamps that make over 1,000 requests/s, when read as ms, are taken for seconds."""

_PLAIN_IDS = re.compile(r'"hash_ids" *: *\[([0-9, ]*)\]')  # in JSON text this can only be a key
_POWERS_OF_TEN = 10 ** np.arange(1, 19)


def read(
    path: str, lines: list[str], numbers: I64, skip: bool, block_tokens: int, time_scale: float
) -> tuple[Rows, tuple[str, ...]]:
    """Rows and notes of non-empty lines.

    numbers       (lines,) line number of each line in the file
    block_tokens  0 is 512
    time_scale    factor that the user gives to set the unit right; 0 leaves the unit unchecked
    """
    block = block_tokens or BLOCK_TOKENS
    faults = Faults(path, numbers)
    rows, texts = _parsed(lines, faults)
    prompt = _column(rows, INPUT, faults)
    output = _column(rows, OUTPUT, faults)
    time_ms = _column(rows, TIME, faults, required=False, whole=False)
    delay_ms = _column(rows, DELAY, faults, required=False, whole=False)
    priority = _column(rows, ("priority",), faults, required=False, signed=True)
    session = _sessions(rows, faults)
    mark_lengths(faults, prompt, output)
    _mark_times(faults, time_ms, delay_ms, session)
    ids, counts = _ids(rows, texts, faults)
    _mark_coverage(faults, prompt, counts, block)
    timed = ~np.isnan(time_ms)
    mark_time_order(faults, time_ms, timed)
    _mark_orphans(faults, timed, session)

    kept = np.flatnonzero(faults.kept(skip))
    time_ms = time_ms[kept]
    notes = faults.note() + _check_unit(path, time_ms, time_scale)
    turn, after = _linked(time_ms, session[kept])
    waits = after != NONE
    start_ms = np.nanmin(time_ms)
    return Rows(
        arrival_ns=_ns(np.where(waits, 0.0, time_ms - start_ms)),
        prompt_tokens=prompt[kept].astype(np.int64),
        output_tokens=output[kept].astype(np.int64),
        priority=-np.nan_to_num(priority[kept]).astype(np.int64),
        session_id=session[kept],
        turn=turn,
        after=after,
        think_ns=_ns(np.where(waits, delay_ms[kept], 0.0)),
        block_tokens=block,
        ids=ids if kept.size == counts.size else take_ragged(ids, counts, kept),
        id_counts=counts[kept],
    ), notes


def _parsed(lines: list[str], faults: Faults) -> tuple[list[Row], list[str | None]]:
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
        try:
            row, end = parse(line)
            if end != len(line) or type(row) is not dict:
                wrong[index] = "is not one JSON object"
                row = {}
        except (ValueError, RecursionError) as error:
            wrong[index] = f"is not JSON: {getattr(error, 'msg', 'nested too deeply, or a number too long')}"
            row = {}
        rows.append(row)
        texts.append(found[1] if found and "hash_ids" in row else None)
    faults.mark_all(wrong)
    return rows, texts


def _column(
    rows: list[Row],
    names: tuple[str, ...],
    faults: Faults,
    required: bool = True,
    whole: bool = True,
    signed: bool = False,
) -> F64:
    """(n,) numbers under the first of the names that a row has; NaN where there is none or a wrong one."""
    values = [row.get(names[0]) for row in rows]
    for alias in names[1:]:
        if None in values:
            values = [v if v is not None else row.get(alias) for v, row in zip(values, rows, strict=True)]
    numbers = _numbers(values)
    absent = np.array([v is None for v in values]) if None in values else np.zeros(len(values), np.bool_)
    if required:
        faults.mark(absent, lambda i: f"has no {' or '.join(names)}")
    wrong = ~absent & ~(np.abs(numbers) <= MAX_NUMBER)  # NaN is wrong too
    faults.mark(wrong, lambda i: f"{names[0]} is {shown(values[i])}, a number is wanted")
    if whole:
        broken = ~absent & (numbers != np.rint(numbers))
        faults.mark(broken, lambda i: f"{names[0]} is {numbers[i]:.12g}, a whole number is wanted")
    if not signed:
        faults.mark(numbers < 0, lambda i: f"{names[0]} is {numbers[i]:.12g}, which is negative")
    return np.where(wrong, np.nan, numbers)


def _numbers(values: list[Any]) -> F64:
    """(n,) JSON numbers as floats; NaN for all else (true and false too)."""
    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return np.full(len(values), np.nan)
    if not kinds <= {int, float}:
        values = [value if type(value) in (int, float) else np.nan for value in values]
    try:
        return np.array(values, np.float64)
    except OverflowError:  # a whole number beyond any float
        return np.array([value if abs(value) <= MAX_NUMBER else np.inf for value in values], np.float64)


def _sessions(rows: list[Row], faults: Faults) -> I64:
    """(n,) sessions numbered in order of appearance, NONE without one."""
    values = [row.get("session_id") for row in rows]
    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return np.full(len(rows), NONE, np.int64)
    wrong = np.array([type(value) not in (str, int, type(None)) for value in values], np.bool_)
    faults.mark(wrong, lambda i: f"session_id is {shown(values[i])}, a string is wanted")
    codes: dict[Any, int] = {}
    return np.array(
        [
            NONE if value is None or bad else codes.setdefault(value, len(codes))
            for value, bad in zip(values, wrong.tolist(), strict=True)
        ],
        np.int64,
    )


def _mark_times(faults: Faults, time_ms: F64, delay_ms: F64, session: I64) -> None:
    missing = np.isnan(time_ms) & (np.isnan(delay_ms) | (session == NONE))
    faults.mark(missing, lambda i: f"has no {' or '.join(TIME)} (nor a session_id with a delay)")


def _ids(rows: list[Row], texts: list[str | None], faults: Faults) -> tuple[I64, I64]:
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


def _mark_coverage(faults: Faults, prompt: F64, counts: I64, block: int) -> None:
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


def _linked(time_ms: F64, session: I64) -> tuple[I64, I64]:
    """(n,) turn within the session and predecessor; a row with a time of its own has none."""
    n = session.size
    order = np.argsort(session, kind="stable")
    ranked = session[order]
    same = np.zeros(n, np.bool_)
    same[1:] = (ranked[1:] == ranked[:-1]) & (ranked[1:] != NONE)
    starts = np.maximum.accumulate(np.where(same, 0, np.arange(n)))
    turn = np.zeros(n, np.int64)
    turn[order] = np.arange(n) - starts
    before = np.full(n, NONE, np.int64)
    before[order[1:]] = np.where(same[1:], order[:-1], NONE)
    return turn, np.where(np.isnan(time_ms), before, NONE)


def _check_unit(path: str, time_ms: F64, time_scale: float) -> tuple[str, ...]:
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
