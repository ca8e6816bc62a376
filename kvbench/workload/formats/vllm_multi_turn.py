"""vLLM's configuration of generated conversations (one JSON object) -> Requests.

    filetype            "generate_conversations"
    num_conversations
    prompt_input        num_turns (user and assistant, rounded up to even), num_tokens (of a user's message),
                        prefix_num_tokens and common_prefix_num_tokens (before the first message)
    prompt_output       num_tokens
    text_files          not read: what is said is a stream of tokens

Every number is a distribution: constant (value), uniform (min, max), lognormal (average, median_ratio, or mean and
sigma of the logarithm), zipf (alpha), poisson (alpha), with max. They are drawn by the seed of lengths.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...core.errors import UsageError
from ...core.requests import NONE, Requests
from ..draws import Purpose, uniforms
from ..format import Format, names
from ..lengths import whole_numbers
from ..options import TraceOptions
from ..prompts import Growing, total
from ..rows import I64, shown
from ..source import Trace
from ..table import request_table

FILETYPE = "generate_conversations"

_LONGEST_TABLE = 65_536
_MAX_CONVERSATIONS = 1_000_000
_MAX_PIECES = 5_000_000
"""Of all prompts together: a conversation of t turns has t * (t + 1). More take minutes."""


def read(trace: Trace, options: TraceOptions) -> Requests:
    """Requests of the conversations, one after another; num_prompts of them. UsageError names the field."""
    source = trace.single()
    document = source.document()
    if not isinstance(document, dict) or document.get("filetype") != FILETYPE:
        raise UsageError(f"{source.name}:1: is no configuration of conversations: filetype must be {FILETYPE!r}")
    count = document.get("num_conversations")
    if type(count) is not int or not 1 <= count <= _MAX_CONVERSATIONS:
        raise UsageError(f"{source.name}: num_conversations is {shown(count)}, a number is wanted")
    seed = options.length_seed

    def drawn(section: str, name: str, purpose: Purpose, size: int, low: int, phase: int = 0) -> I64:
        spec = document.get(section)
        given = spec.get(name) if isinstance(spec, dict) else None
        place = f"{source.name}: {section}.{name}"
        if given is None and name.startswith("common"):
            return np.zeros(size, np.int64)
        return whole_numbers(_spec(given, place), uniforms(seed, purpose, size, phase), place, low)

    turns = (drawn("prompt_input", "num_turns", Purpose.TURNS, count, 2) + 1) // 2
    if options.num_prompts:
        turns = turns[: int(np.searchsorted(np.cumsum(turns), options.num_prompts)) + 1]
    if float((turns * (turns + 1.0)).sum()) > _MAX_PIECES:
        raise UsageError(
            f"{source.name}: the conversations make over {_MAX_PIECES:,} prompt pieces; lower num_turns or "
            "num_conversations, or set num_prompts"
        )
    n = int(turns.sum())
    common = int(drawn("prompt_input", "common_prefix_num_tokens", Purpose.PREFIX, 1, 0)[0])
    prefix = drawn("prompt_input", "prefix_num_tokens", Purpose.PREFIX, turns.size, 0, 1)
    text = drawn("prompt_input", "num_tokens", Purpose.PROMPT, n, 1)
    output = drawn("prompt_output", "num_tokens", Purpose.OUTPUT, n, 1)
    return _requests(turns, common, prefix, text, output, options.num_prompts or n)


FORMAT = Format(read, keys=names("filetype"), timed=False)


def _requests(turns: I64, common: int, prefix: I64, text: I64, output: I64, most: int) -> Requests:
    prompts = Growing()
    shared = prompts.fresh(common)
    lengths: list[int] = []
    texts, outputs = iter(text.tolist()), iter(output.tolist())
    for own, count in zip(prefix.tolist(), turns.tolist(), strict=True):
        context = [*shared, *prompts.fresh(own)]
        for _ in range(min(count, most - len(lengths))):
            prompt = [*context, *prompts.fresh(next(texts))]
            context = prompts.add(prompt, next(outputs))
            lengths.append(total(prompt))
    n = len(lengths)
    session = np.repeat(np.arange(turns.size), turns)[:n]
    turn = np.arange(n) - (np.cumsum(turns) - turns)[session]
    return request_table(
        n,
        prompt_tokens=np.array(lengths, np.int64),
        output_tokens=output[:n],
        session_id=session,
        turn=turn,
        after=np.where(turn > 0, np.arange(n) - 1, NONE),
        **prompts.columns(),
        notes=("conversations are drawn; the text files of the configuration are not read",),
    )


def _spec(given: Any, place: str) -> dict[str, Any]:
    """The distribution in the words of lengths.*. UsageError: it is none."""
    kind = given.get("distribution") if isinstance(given, dict) else None
    bounds = {"max": given["max"]} if kind in ("lognormal", "zipf", "poisson") and given.get("max") else {}
    try:
        if kind == "constant":
            return {"distribution": "fixed", "value": given["value"]}
        if kind == "uniform":
            return {"distribution": "uniform", "min": given["min"], "max": given["max"]}
        if kind == "lognormal" and "average" in given:
            sigma = math.sqrt(-2 * math.log(given.get("median_ratio") or 0.85))
            return {"distribution": "lognormal", "mean": given["average"], "sigma": sigma, **bounds}
        if kind == "lognormal":
            return {"distribution": "lognormal", "median": math.exp(given["mean"]), "sigma": given["sigma"], **bounds}
        if kind in ("zipf", "poisson"):
            return _table(kind, float(given["alpha"]), int(bounds.get("max", _LONGEST_TABLE)))
    except KeyError as error:
        raise UsageError(f"{place}: a {kind} distribution needs {error}") from None
    except (TypeError, ValueError, OverflowError):
        pass
    raise UsageError(
        f"{place} is {shown(given)}; wanted is a distribution: constant, uniform, lognormal, zipf or poisson"
    )


def _table(kind: str, alpha: float, most: int) -> dict[str, Any]:
    """zipf and poisson as a table of values; what lies beyond `most` is set to it. ValueError: alpha is wrong."""
    if not (1 if kind == "zipf" else 0) < alpha < 1e6 or most < 1:
        raise ValueError
    top = min(most, _LONGEST_TABLE)
    values = np.arange(1, top + 1) if kind == "zipf" else np.arange(top + 1)
    if kind == "zipf":
        weights = values.astype(np.float64) ** -alpha
        weights[-1] = top ** (1 - alpha) / (alpha - 1)  # about the tail's sum
    else:
        logs = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, top + 1)))))
        weights = np.exp(values * math.log(alpha) - alpha - logs)
        weights[-1] = max(1 - float(weights[:-1].sum()), 0.0)
    return {"distribution": "empirical", "values": values.tolist(), "weights": weights.tolist()}
