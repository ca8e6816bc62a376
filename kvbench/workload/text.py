"""Requests in words -> tokens: by a local tokenizer, or as an estimate of lengths.

With trace.tokenizer (a tokenizer.json) every text becomes its token ids, and equal beginnings are shared. With
trace.chars_per_token only lengths are known: no prompt shares anything with any other, and a note says so. A text is
never compared with another.

A message is tokenized in three pieces, `<|role|>` newline, content, newline, and a prompt ends with the head of the
answer. That is no model's template, but has the property that matters: equal leading messages are equal tokens, and
what was answered comes back as the tokens that were generated.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UsageError
from ..core.requests import EXPLICIT, MAX_STREAM_TOKENS, NONE
from .options import TraceOptions
from .outputs import default_note, default_outputs
from .prompts import Growing, Piece, apart, total
from .rows import Faults, shown

ANSWERS = ("assistant", "gpt", "chatgpt", "bing", "bard", "model")
"""Roles of the model."""

_HEAD = "<|assistant|>\n"


@dataclass(frozen=True)
class Ask:
    """One request in words.

    pieces          texts of the prompt, tokenized one by one
    answer          what was generated, where it is recorded
    output_tokens   its length, where it is stated; the answer goes before it
    prompt_tokens   the prompt's length, where it is stated: the estimate's better
    follows         the request whose prompt and answer come before the pieces; NONE else
    """

    pieces: tuple[str, ...]
    answer: str | None = None
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    follows: int = NONE


def message(role: str, content: str) -> tuple[str, str, str]:
    """The pieces of a message."""
    return f"<|{'assistant' if role in ANSWERS else role}|>\n", content, "\n"


def chat(messages: list[tuple[str, str]]) -> tuple[str, ...]:
    """The pieces of a prompt of (role, content) that the model is to answer."""
    return (*(piece for role, content in messages for piece in message(role, content)), _HEAD)


def messages_of(value: Any, role: str = "role", content: str = "content") -> list[tuple[str, str]]:
    """(role, content) of a list of messages. ValueError: it is none, or holds what is no text."""
    if not isinstance(value, list) or not value:
        raise ValueError(f"messages are {shown(value)}, a list of messages is wanted")
    found = []
    for k, entry in enumerate(value):
        if not isinstance(entry, dict) or not isinstance(entry.get(role), str):
            raise ValueError(f"message {k} is {shown(entry)}, an object with a {role} is wanted")
        text = _content(entry.get(content), k)
        if entry.get("tool_calls"):
            text += json.dumps(entry["tool_calls"], ensure_ascii=False, sort_keys=True)
        found.append((entry[role], text))
    return found


def _content(value: Any, k: int) -> str:
    """A text, or the parts of one; None is empty (a message that only calls tools)."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in value):
        return "".join(part["text"] for part in value)
    raise ValueError(f"the content of message {k} is {shown(value)}, a text is wanted")


def tokens_of(asks: list[Ask], faults: Faults, options: TraceOptions) -> dict[str, Any]:
    """Columns of Requests: lengths, segments, token_ids, and notes on how they came about.

    faults   of the same rows, for the place in an error
    """
    if options.tokenizer:
        return _tokenized(asks, options)
    return _estimated(asks, faults, options)


def _tokenized(asks: list[Ask], options: TraceOptions) -> dict[str, Any]:
    texts, prompts = _Texts(options.tokenizer), Growing()
    asks, defaults = _with_outputs(asks, options)
    contexts: list[list[Piece]] = []
    lengths = []
    empty = 0
    for ask in asks:
        before = [] if ask.follows == NONE else contexts[ask.follows]
        prompt = [*before, *(p for p in map(texts.piece, ask.pieces) if p[2])] or prompts.fresh(ask.prompt_tokens or 1)
        answer = texts.piece(ask.answer) if ask.answer is not None else (EXPLICIT, 0, 0)
        stated = ask.output_tokens is not None and ask.answer is None
        output = (ask.output_tokens or 0) if stated else max(answer[2], 1)
        empty += not stated and answer[2] == 0
        contexts.append(prompts.add(prompt, output, answer if answer[2] else None))
        lengths.append((total(prompt), output))
    longest = max(prompt for prompt, _ in lengths)
    if longest >= MAX_STREAM_TOKENS:
        raise UsageError(f"a prompt has {longest} tokens, the limit is {MAX_STREAM_TOKENS - 1}")
    said = (f"tokenized by {Path(options.tokenizer).name}: messages as <|role|>, text, newline; no chat template",)
    return {
        **_lengths(lengths),
        **prompts.columns(),
        "token_ids": np.array(texts.ids, np.int64),
        "notes": (*said, *defaults, *_empty_note(empty)),
    }


def _estimated(asks: list[Ask], faults: Faults, options: TraceOptions) -> dict[str, Any]:
    ratio = options.chars_per_token
    asks, defaults = _with_outputs(asks, options)
    lengths: list[tuple[int, int]] = []
    empty = guessed = 0
    for i, ask in enumerate(asks):
        known = ask.prompt_tokens is not None and ask.output_tokens is not None
        if not known and not ratio:
            raise UsageError(
                f"{faults.where(i)}: holds text: set trace.tokenizer to a tokenizer.json (extra kvbench[tokenizers]), "
                "or trace.chars_per_token=4 for an estimate of lengths"
            )
        before = 0 if ask.follows == NONE else sum(lengths[ask.follows])
        prompt = ask.prompt_tokens or before + math.ceil(sum(map(len, ask.pieces)) / (ratio or 1))
        output = ask.output_tokens
        if output is None:
            output = max(math.ceil(len(ask.answer or "") / ratio), 1)
            empty += not ask.answer
        guessed += not known
        lengths.append((max(prompt, 1), output))
    columns = _lengths(lengths)
    notes = (*_guess_note(guessed, ratio), *defaults, *_empty_note(empty))
    return {**columns, **apart(columns["prompt_tokens"]), "notes": notes}


def _with_outputs(asks: list[Ask], options: TraceOptions) -> tuple[list[Ask], tuple[str, ...]]:
    """The requests, those that state no output and have no answer with one from trace.default_output."""
    bare = [i for i, ask in enumerate(asks) if ask.output_tokens is None and not ask.answer]
    if not bare or options.default_output == 0:
        return asks, ()
    drawn = default_outputs(len(asks), options)
    filled = list(asks)
    for i in bare:
        filled[i] = replace(asks[i], answer=None, output_tokens=int(drawn[i]))
    return filled, default_note(len(bare), len(asks))


def _lengths(lengths: list[tuple[int, int]]) -> dict[str, Any]:
    prompt, output = np.array(lengths, np.int64).T
    return {"prompt_tokens": prompt.copy(), "output_tokens": output.copy()}


def _guess_note(guessed: int, ratio: float) -> tuple[str, ...]:
    if guessed == 0:
        return ("lengths as the trace states them, its text unread: no prompt shares anything, so nothing can hit",)
    return (
        f"LENGTHS ARE AN ESTIMATE: {ratio:g} characters a token (trace.chars_per_token); no prompt shares anything, "
        "so nothing can hit",
    )


def _empty_note(empty: int) -> tuple[str, ...]:
    return (f"{empty} answers are empty (calls of tools are often not recorded): 1 token each",) if empty else ()


class _Texts:
    """Token ids of texts, each different text once."""

    def __init__(self, path: str) -> None:
        self.ids: list[int] = []
        self._tokenizer = _tokenizer(path)
        self._pieces: dict[str, Piece] = {}

    def piece(self, text: str) -> Piece:
        """Where the ids of a text lie; 0 of them for an empty one."""
        found = self._pieces.get(text)
        if found is None:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            found = self._pieces[text] = (EXPLICIT, len(self.ids), len(ids))
            self.ids += ids
        return found


def _tokenizer(path: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise UsageError("trace.tokenizer needs the tokenizers package: pip install 'kvbench[tokenizers]'") from None
    if not Path(path).is_file():
        raise UsageError(f"trace.tokenizer: {path}: no such file; wanted is a model's tokenizer.json")
    try:
        return Tokenizer.from_file(path)
    except Exception as error:  # the library raises its own kinds, derived from nothing else
        raise UsageError(f"trace.tokenizer: {path}: is no tokenizer.json: {shown(str(error))}") from None
