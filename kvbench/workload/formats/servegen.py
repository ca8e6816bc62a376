"""ServeGen folders -> Requests: not a trace but the clients of a service, from which one is drawn.

    chunk-I-trace.csv      no header; window start (s), rate (requests/s), CV, "Gamma" | "Weibull" | "", shape, scale
    chunk-I-dataset.json   {window start: {field: "{tokens: probability, ...}"}}; "{}" in windows without traffic

Every client is a renewal process of the stated shape and rate in each of its windows, begun anew with the window, and
a tenant. Its lengths are drawn from the table of the window, or of the last one before it that has traffic. Fields:
input_tokens or text_tokens (image_tokens, audio_tokens and video_tokens are added), output_tokens.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import UsageError
from ...core.requests import MAX_STREAM_TOKENS, Requests
from ...core.units import NS_PER_S, NS_PER_US
from ..csv_table import cells
from ..draws import Purpose, uniforms
from ..format import Format
from ..options import TraceOptions
from ..prompts import apart
from ..rows import I64, shown
from ..source import Source, Trace
from ..table import request_table

F64 = NDArray[np.float64]

NAME = re.compile(r"chunk-(\d+)-(trace\.csv|dataset\.json)(?:\.gz)?")
WINDOW_S = 600.0
PROMPT_FIELDS = ("input_tokens", "text_tokens", "image_tokens", "audio_tokens", "video_tokens")
OUTPUT_FIELD = "output_tokens"
FIELDS = (*PROMPT_FIELDS, OUTPUT_FIELD)

_SHAPES = ("Gamma", "Weibull")
_START = re.compile(r"\d{1,9}(?:\.\d*)?", re.ASCII)


@dataclass(frozen=True)
class Window:
    """start_s, mean requests/s, and the shape of the gaps (1 for "")."""

    start_s: float
    rate: float
    pattern: str
    shape: float


@dataclass(frozen=True)
class Client:
    """A client's windows by start, and its length tables as text, of windows with traffic: start -> field -> text."""

    number: int
    name: str
    windows: dict[float, Window]
    texts: dict[float, Mapping[str, Any]]


Tables = dict[str, tuple[F64, F64]]
"""field -> tokens, cumulated probability"""


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of trace.duration_s (0 is all windows) from trace.start_s on, or num_prompts of them."""
    clients, notes = clients_of(trace)
    starts = sorted({start for client in clients for start in client.windows})
    stop_s = options.start_s + options.duration_s if options.duration_s else math.inf
    parts: list[tuple[F64, I64, I64, I64]] = []
    found, wanted = 0, options.num_prompts
    for start in starts:
        if start + WINDOW_S <= options.start_s or start >= stop_s or (wanted and found >= wanted):
            continue
        part = _window(clients, start, options)
        inside = (part[0] >= options.start_s) & (part[0] < stop_s)
        parts.append((part[0][inside], part[1][inside], part[2][inside], part[3][inside]))
        found += int(inside.sum())
    if found == 0:
        raise UsageError(f"{trace.name}: no client has traffic in that time; check trace.start_s, trace.duration_s")
    time_s, client, prompt, output = (
        np.concatenate(columns)[: wanted or found] for columns in zip(*parts, strict=True)
    )
    return request_table(
        time_s.size,
        arrival_ns=np.rint((time_s - options.start_s) * (NS_PER_S / NS_PER_US)).astype(np.int64) * NS_PER_US,
        prompt_tokens=prompt,
        output_tokens=output,
        tenant=client,
        tenants=tuple(f"client-{c.number}" for c in clients),
        **apart(prompt),
        notes=(*notes, f"drawn from the rates and lengths of {len(clients)} clients; they say nothing of sharing"),
    )


FORMAT = Format(read, files=NAME, windowed=True)


def _window(clients: list[Client], start: float, options: TraceOptions) -> tuple[F64, I64, I64, I64]:
    """Times, clients, prompts and outputs of one window, in order of time."""
    parts = []
    for index, client in enumerate(clients):
        window = client.windows.get(start)
        table = None if window is None or window.rate == 0 else _tables_at(client, start)
        if window is None or table is None:
            continue
        place = index << 32 | int(start)
        time = _times(window, options.arrival_seed, place)
        u = uniforms(options.length_seed, Purpose.PROMPT, time.size, place)
        prompt = np.sum([_tokens(table[name], u) for name in PROMPT_FIELDS if name in table], axis=0)
        v = uniforms(options.length_seed, Purpose.OUTPUT, time.size, place)
        output = _tokens(table[OUTPUT_FIELD], v)
        parts.append((time, np.full(time.size, index), np.maximum(prompt, 1), output))
    if not parts:
        empty = np.zeros(0, np.int64)
        return np.zeros(0), empty, empty, empty
    time, owner, prompt, output = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(time, kind="stable")
    return time[order], owner[order], prompt[order], output[order]


def _times(window: Window, seed: int, place: int) -> F64:
    """Ascending times of a renewal process in a window."""
    size = int(window.rate * WINDOW_S * 1.25) + 32
    while True:  # raw draws have prefixes: a second round begins with the gaps of the first
        gaps = _unit_gaps(window, uniforms(seed, Purpose.GAP, size, place)) / window.rate
        times = np.cumsum(gaps)
        if times[-1] >= WINDOW_S:
            return window.start_s + times[times < WINDOW_S]
        size *= 2


def _unit_gaps(window: Window, u: F64) -> F64:
    """Quantiles of mean 1."""
    if window.pattern == "Weibull":
        return (-np.log1p(-u)) ** (1 / window.shape) / math.gamma(1 + 1 / window.shape)
    if window.shape == 1.0:
        return -np.log1p(-u)
    from scipy.special import gammaincinv

    return np.maximum(gammaincinv(window.shape, u) / window.shape, 1e-9)


def _tables_at(client: Client, start: float) -> Tables | None:
    """The lengths of a window: its own, or those of the last before it with traffic, else of the first after it."""
    if not client.texts:
        return None
    before = [s for s in client.texts if s <= start]
    nearest = max(before) if before else min(client.texts)
    place = f"{client.name}: window {nearest:g}"
    texts = client.texts[nearest]
    return {name: _histogram(texts[name], f"{place}: {name}") for name in FIELDS if name in texts}


def _tokens(table: tuple[F64, F64], u: F64) -> I64:
    values, edges = table
    return values[np.searchsorted(edges[:-1], u * edges[-1], side="right")].astype(np.int64)


# ---------------------------------------------------------------- the files


def clients_of(trace: Trace) -> tuple[list[Client], tuple[str, ...]]:
    """Clients that have both files, by number. UsageError: there are none, or a file is wrong."""
    files: dict[int, dict[str, Source]] = {}
    for source in trace.files:
        match = NAME.fullmatch(Path(source.name).name)
        if match:
            files.setdefault(int(match[1]), {})[match[2]] = source
    whole = {number: pair for number, pair in files.items() if len(pair) == 2}
    if not whole:
        raise UsageError(f"{trace.name}: has no chunk-N-trace.csv with its chunk-N-dataset.json")
    without = len(files) - len(whole)
    notes = (f"{without} of {len(files)} clients lack one of their two files: left out",) if without else ()
    return [
        Client(number, pair["dataset.json"].name, _windows(pair["trace.csv"]), _texts(pair["dataset.json"]))
        for number, pair in sorted(whole.items())
    ], notes


def _windows(source: Source) -> dict[float, Window]:
    lines, numbers = source.lines()
    return {
        window.start_s: window
        for line, number in zip(lines, numbers, strict=True)
        for window in [_one_window(cells(line), f"{source.name}:{number}")]
    }


def _one_window(row: list[str], place: str) -> Window:
    wanted = "six values: window start, rate, CV, Gamma or Weibull, shape, scale"
    if len(row) != 6:
        raise UsageError(f"{place}: has {len(row)} fields, wanted are {wanted}")
    try:
        start, rate, _, shape, _ = (float(row[i]) for i in (0, 1, 2, 4, 5))
    except ValueError:
        raise UsageError(f"{place}: holds {shown(','.join(row))}, wanted are {wanted}") from None
    idle = rate == 0
    fits = 0 <= start <= 1e9 and 0 <= rate <= 1e4 and (idle or row[3] in ("", *_SHAPES))
    if not fits or not (idle or row[3] == "" or 1e-2 <= shape <= 1e4):
        raise UsageError(f"{place}: holds {shown(','.join(row))}, wanted are {wanted}")
    return Window(start, rate, row[3], shape if row[3] else 1.0)


def _texts(source: Source) -> dict[float, Mapping[str, Any]]:
    """Length tables, unread, of the windows that have them for prompts and outputs."""
    document = source.document()
    if not isinstance(document, Mapping):
        raise UsageError(f"{source.name}:1: is no object of windows")
    found: dict[float, Mapping[str, Any]] = {}
    for start, given in document.items():
        if not isinstance(given, Mapping) or not _START.fullmatch(start):
            raise UsageError(f"{source.name}: window {shown(start)} is no window of fields")
        filled = {name: text for name, text in given.items() if text not in ("", "{}")}
        if OUTPUT_FIELD in filled and any(name in filled for name in PROMPT_FIELDS):
            found[float(start)] = filled
    return found


def _histogram(text: Any, place: str) -> tuple[F64, F64]:
    """Tokens and cumulated probabilities of a Python literal, read as JSON: nothing is evaluated."""
    try:
        table = json.loads(text.replace(" ", "").replace("{", '{"').replace(",", ',"').replace(":", '":'))
        pairs = sorted((float(tokens), float(share)) for tokens, share in table.items())
    except (ValueError, TypeError, AttributeError, RecursionError):
        pairs = []
    good = all(0 <= tokens < MAX_STREAM_TOKENS / 4 and 0 <= share <= 1e9 for tokens, share in pairs)
    if not good or not sum(share for _, share in pairs) > 0:
        raise UsageError(f"{place} is {shown(text)}, a table {{tokens: probability}} in a string is wanted")
    values, weights = np.array(pairs, np.float64).T
    return values.copy(), np.cumsum(weights)
