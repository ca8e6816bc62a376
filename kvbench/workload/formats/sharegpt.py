"""Conversations: ShareGPT, WildChat, LMSYS-Chat (a JSON array, or JSON Lines) -> Requests.

    conversations   ShareGPT: [{from, value}]; also {role, content}
    conversation    WildChat, LMSYS-Chat: [{role, content}]

A request for every answer, after the one before it in its conversation. No arrivals; `text` says how words become
tokens.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.errors import UsageError
from ...core.requests import NONE, Requests
from ..format import Format, names
from ..json_columns import Row, each
from ..options import TraceOptions
from ..records import records
from ..rows import Faults, unread_note
from ..source import Trace
from ..table import request_table
from ..text import ANSWERS, Ask, chat, messages_of, tokens_of

READ = ("id", "conversations", "conversation", "conversation_id", "conversation_hash")


def read(trace: Trace, options: TraceOptions) -> Requests:
    """UsageError on wrong conversations (unless they are skipped), or when none has an answer."""
    found = records(trace)
    faults = found.faults
    chains = each(found.rows, faults, _conversation)
    kept = np.flatnonzero(faults.kept(options.skip_bad_rows)).tolist()
    asks: list[Ask] = []
    owners: list[tuple[int, int, int]] = []
    for i in kept:
        chain = chains[i] or []
        owners += [(i, turn, NONE if turn == 0 else len(asks) + turn - 1) for turn in range(len(chain))]
        asks += chain
    if not asks:
        raise UsageError(f"{trace.name}: no conversation has an answer; a request is made for every answer")
    asks, owners = asks[: options.num_prompts or len(asks)], owners[: options.num_prompts or len(asks)]
    columns = tokens_of(asks, Faults(len(asks), lambda i: faults.where(owners[i][0])), options)
    session, turn, after = np.array(owners, np.int64).T.copy()
    notes = (*faults.note(), *found.notes, *columns.pop("notes"))
    notes += unread_note((name for row in found.rows for name in row), READ)
    sessions = np.unique(session, return_inverse=True)[1].astype(np.int64)
    return request_table(len(asks), session_id=sessions, turn=turn, after=after, **columns, notes=notes)


FORMAT = Format(read, keys=names("conversations", "conversation"), timed=False)


def _conversation(row: Row) -> list[Ask]:
    """A request for every answer; what comes before it is its prompt."""
    given = row.get("conversations", row.get("conversation"))
    messages = messages_of(given, "from", "value") if _says_from(given) else messages_of(given)
    return [
        Ask(chat(messages[:k]), content)
        for k, (role, content) in enumerate(messages)
        if role in ANSWERS and k > 0 and messages[k - 1][0] not in ANSWERS
    ]


def _says_from(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "from" in value[0]
