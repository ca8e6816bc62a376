"""The command that starts a server, as changes of keys: `--from "vllm serve MODEL --max-num-seqs 128"`, or a file.

A file may be a shell script: what comes before the command is not read, a backslash at the end of a line continues it,
and the command ends with its line.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.config import read_text
from ..core.errors import UsageError
from .server_flags import ENGINES, OFF, ON, SHORT, Engine

OPTION = "--from"


@dataclass(frozen=True)
class ServerCommand:
    """changes: (where, "key=value"), as `configure` takes them. left_out: a line for each flag that is no key here."""

    engine: str
    changes: tuple[tuple[str, str], ...]
    left_out: tuple[str, ...]


def read_command(text: str) -> ServerCommand:
    """Of a command or a file. UsageError: there is no such command in it, or a flag has a value that cannot be."""
    is_file = " " not in text.strip() and (os.path.exists(text) or "/" in text or text.endswith((".sh", ".txt")))
    where = text if is_file else OPTION
    words = _words(read_text(Path(text)) if is_file else text, where)
    name, rest = _engine(words, where)
    engine = ENGINES[name]
    changes = [(OPTION, f"preset={engine.preset}"), *((OPTION, change) for change in engine.always)]
    left_out: list[str] = []
    for flag, value in _flags(rest, engine):
        if flag in engine.idle:
            continue
        if flag not in engine.flags:
            left_out.append(f"{OPTION}: --{flag} is left out: kvbench does not know it, or does not model it")
            continue
        try:
            found = engine.flags[flag](value)
        except UsageError as error:
            left_out.append(f"{OPTION}: --{flag} {value} is left out: {error}")
            continue
        changes += [(f"{OPTION} --{flag}", change) for change in found]
    return ServerCommand(name, tuple(changes), tuple(left_out))


def _words(text: str, where: str) -> list[str]:
    """Of the line that holds the command."""
    starts = [" ".join(program) for engine in ENGINES.values() for program in engine.programs]
    lines = re.sub(r"\\\r?\n", " ", text).splitlines()
    line = next((one for one in lines if not one.lstrip().startswith("#") and any(s in one for s in starts)), "")
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{where}: a command that a shell would not read: {error}") from None


def _engine(words: Sequence[str], where: str) -> tuple[str, list[str]]:
    """Its name, and the words behind the program."""
    for name, engine in ENGINES.items():
        for program in engine.programs:
            for i in range(len(words) - len(program) + 1):
                tail = [os.path.basename(words[i]), *words[i + 1 : i + len(program)]]
                if tuple(tail) == program:
                    return name, list(words[i + len(program) :])
    raise UsageError(f"{where}: no command of a known server; write `vllm serve MODEL ...` or `sglang serve ...`")


def _flags(words: Sequence[str], engine: Engine) -> list[tuple[str, str]]:
    """(flag, value) in order; a word without a flag is the model; --no-x and a flag without a value are switches."""
    found: list[tuple[str, str]] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word in ("&", "&&", ";", "|", ">", "2>&1"):
            break
        if not word.startswith("-"):
            found.append(("model", word))
            continue
        name, equals, value = word.lstrip("-").partition("=")
        flag = name.replace("_", "-")
        flag = SHORT.get(flag, flag) if not word.startswith("--") else flag
        positive = flag.removeprefix("no-")
        if positive != flag and positive in engine.switches:
            found.append((positive, OFF))
        elif equals or flag in engine.switches:
            found.append((flag, value if equals and value.lower() not in (ON, OFF) else (value or ON).lower()))
        else:
            takes = bool(rest) and (not rest[0].startswith("-") or rest[0].lstrip("-").isdigit())
            found.append((flag, rest.pop(0) if takes else ON))
    return found
