"""Configuration: layers of values over one tree of keys.

    keys of the rooms + layers (defaults < preset < file < flags) -> Config -> nested tables in run.json

A layer is checked when it is made, against the keys it was given: a wrong key or value is reported with the
place it stood in. This module knows no key by name; the rooms above declare theirs (`core.keys.Key`) and
pass them in. `[[phase]]` is the one table that is a list; a phase may set its own keys and override others.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import UsageError
from .keys import Key

PHASE = "phase"
"""The name of the list of tables."""

DEFAULTS = "default"
"""Where a value stood that nobody set."""


@dataclass(frozen=True)
class Layer:
    """Checked values from one place.

    where    as an error or `kvbench config` names it: "chat.toml", "--set", "preset vllm-0.33"
    values   dotted name -> value; a name below a length ("lengths.prompt.mean") changes one field of it
    phases   one dict of dotted names for each [[phase]]
    """

    where: str
    values: dict[str, Any]
    phases: tuple[dict[str, Any], ...] = ()


@dataclass(frozen=True)
class Config:
    """Every key with its value and the place it came from."""

    values: dict[str, Any]
    where: dict[str, str]
    phases: tuple[dict[str, Any], ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def replaced(self, changes: Mapping[str, Any], where: str) -> Config:
        """The same configuration with some values resolved."""
        return Config({**self.values, **changes}, {**self.where, **dict.fromkeys(changes, where)}, self.phases)

    def section(self, prefix: str) -> dict[str, Any]:
        """The values below one table, without its name: section("scheduler")["policy"]."""
        return {n[len(prefix) + 1 :]: v for n, v in self.values.items() if n.startswith(prefix + ".")}

    def tree(self) -> dict[str, Any]:
        """Nested tables, as a TOML file or run.json holds them."""
        return nest(self.values, self.phases)


@dataclass(frozen=True)
class KeyTree:
    """The keys that are allowed, and the ones a [[phase]] may hold."""

    keys: tuple[Key, ...]
    phase_keys: tuple[Key, ...] = ()
    by_name: dict[str, Key] = field(init=False, repr=False)
    by_phase_name: dict[str, Key] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_name", _index(self.keys))
        object.__setattr__(self, "by_phase_name", _index(self.phase_keys))

    def layer(self, tree: Mapping[str, Any], where: str, folder: Path | None = None) -> Layer:
        """Check nested tables. A relative path is taken from `folder`, where one is given."""
        plain = {name: value for name, value in tree.items() if name != PHASE}
        values = _flatten(plain, self.by_name, where, folder)
        phases = tree.get(PHASE, [])
        if not isinstance(phases, list) or not all(isinstance(p, Mapping) for p in phases):
            raise UsageError(f"{where}: phase is a list of tables; write [[phase]]")
        checked = [
            _flatten(phase, self.by_phase_name, f"{where}: [[phase]] {i}", folder) for i, phase in enumerate(phases, 1)
        ]
        return Layer(where, values, tuple(checked))

    def assignments(self, texts: Iterable[str], where: str, folder: Path | None = None) -> Layer:
        """Check `a.b=v` texts. A value is read as TOML, and as a plain string where it is not TOML."""
        values: dict[str, Any] = {}
        for text in texts:
            name, equals, raw = text.partition("=")
            name = name.strip()
            if not equals or not name:
                raise UsageError(f"{where} {text}: write it as key=value, for example arrivals.rate=4")
            key = self.key_of(name, f"{where} {text}")
            value = _parse(raw.strip(), key if key.name == name else None)
            if key.name == name:
                value = check(key, value, f"{where} {text}", folder)
            values[name] = value
        return Layer(where, values)

    def key_of(self, name: str, where: str) -> Key:
        """The key of a dotted name, or the length that a field belongs to. UsageError names the nearest."""
        return _find(name, self.by_name, where)

    def resolve(self, layers: Sequence[Layer]) -> Config:
        """Lay the layers over the defaults, first to last; phases are those of the last that has some."""
        values = {key.name: key.default for key in self.keys}
        where = dict.fromkeys(values, DEFAULTS)
        phases: tuple[dict[str, Any], ...] = ()
        for layer in layers:
            for name, value in layer.values.items():
                key = self.key_of(name, layer.where)
                owner = key.name
                values[owner] = value if owner == name else _with_field(values[owner], key, name, value, layer)
                where[owner] = layer.where
            phases = layer.phases or phases
        return Config(values, where, phases)


def check(key: Key, value: Any, where: str, folder: Path | None = None) -> Any:
    """The value in the type of its key. UsageError: wrong type, out of range, not one of the choices."""
    kind = key.kind
    if kind in ("str", "path", "choice", "choice-or-function"):
        if not isinstance(value, str):
            raise UsageError(f"{where}: {key.name} is a string, got {_shown(value)}")
        if kind == "choice" and value not in key.choices:
            raise UsageError(f"{where}: {key.name} is one of {', '.join(key.choices)}; got {value!r}")
        if kind == "choice-or-function" and value not in key.choices:
            return _function(key, value, where, folder)
        if kind == "path" and value not in ("", "-") and folder is not None:  # - is standard input
            return os.path.abspath(folder / Path(value).expanduser())
        return value
    if kind == "bool":
        if not isinstance(value, bool):
            raise UsageError(f"{where}: {key.name} is true or false, got {_shown(value)}")
        return value
    if kind == "length" and isinstance(value, Mapping | str):
        return _with_files(value, folder) if isinstance(value, Mapping) else value
    if kind == "engines":
        return _engines(key, value, where)
    if kind == "names":
        return _names(key, value, where)
    if kind == "tables":
        if not isinstance(value, list | tuple) or not all(isinstance(table, Mapping) for table in value):
            raise UsageError(f"{where}: {key.name} is a list of tables, got {_shown(value)}")
        return [dict(table) for table in value]
    return _number(key, value, where)


def _with_files(table: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """A table of a length with the paths in it, also those of parts within parts, made absolute."""
    found = dict(table)
    if isinstance(found.get("file"), str) and folder is not None:
        found["file"] = os.path.abspath(folder / Path(found["file"]).expanduser())
    if isinstance(found.get("parts"), list | tuple):
        found["parts"] = [_with_files(p, folder) if isinstance(p, Mapping) else p for p in found["parts"]]
    return found


def _engines(key: Key, value: Any, where: str) -> int | dict[str, Any]:
    """A number, or a table that says more; whose keys its reader checks."""
    count = value.get("engines", 1) if isinstance(value, Mapping) else value
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= (key.high or count):
        raise UsageError(f"{where}: {key.name} is a number of engines, or a table with one; got {_shown(count)}")
    return dict(value) if isinstance(value, Mapping) else count


def _names(key: Key, value: Any, where: str) -> str | list[str]:
    if isinstance(value, str):
        return value
    if not isinstance(value, list | tuple) or not value or not all(isinstance(name, str) for name in value):
        raise UsageError(f"{where}: {key.name} is a string or a list of strings, got {_shown(value)}")
    if len(set(value)) < len(value):
        raise UsageError(f"{where}: {key.name} names {max(value, key=list(value).count)!r} twice")
    return list(value)


def _function(key: Key, value: str, where: str, folder: Path | None) -> str:
    """FILE.py:NAME with the path made absolute."""
    file, _, name = value.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        choices = ", ".join(c for c in key.choices if c)
        raise UsageError(f"{where}: {key.name} is one of {choices}, or FILE.py:FUNCTION; got {value!r}")
    return value if folder is None else f"{os.path.abspath(folder / Path(file).expanduser())}:{name}"


def nearest(name: str, candidates: Iterable[str]) -> str:
    """The candidate most like `name`; the last part of a dotted name counts as much as the whole."""
    return max(candidates, key=lambda candidate: _likeness(name, candidate))


def _likeness(name: str, candidate: str) -> float:
    from difflib import SequenceMatcher

    whole = SequenceMatcher(None, name, candidate).ratio()
    last = SequenceMatcher(None, name.rpartition(".")[2], candidate.rpartition(".")[2]).ratio()
    return whole + last


def nest(values: Mapping[str, Any], phases: Iterable[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """Dotted names as nested tables."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *tables, last = name.split(".")
        at = tree
        for table in tables:
            at = at.setdefault(table, {})
        at[last] = value
    listed = [nest(phase) for phase in phases]
    return {**tree, PHASE: listed} if listed else tree


def toml_text(value: Any) -> str:
    """A value as TOML, so that reading it back gives it again. A NumPy scalar is the number that it holds."""
    import json  # here: every start of the command line loads this module

    value = value.item() if hasattr(value, "item") else value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {toml_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_text(v) for v in value) + "]"
    return str(value) if isinstance(value, int | float) else json.dumps(str(value), ensure_ascii=False)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file. UsageError: missing, unreadable, not TOML (with the line)."""
    import tomllib

    try:
        return tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not valid TOML: {error}") from None


def read_text(path: Path) -> str:
    """A text file. UsageError: missing, a folder, no permission, not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not a UTF-8 text file") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None


def _index(keys: Iterable[Key]) -> dict[str, Key]:
    index: dict[str, Key] = {}
    for key in keys:
        if index.setdefault(key.name, key) is not key:
            raise ValueError(f"two rooms declare the key {key.name}")
    return index


def _find(name: str, keys: Mapping[str, Key], where: str) -> Key:
    if name in keys:
        return keys[name]
    owner = keys.get(name.rpartition(".")[0])
    if owner is not None and owner.kind == "length":
        return owner
    engines = next((key for n, key in keys.items() if key.kind == "engines" and name.startswith(n + ".")), None)
    if engines is not None:
        return engines
    table = [n for n in keys if n.startswith(name + ".")]
    if table:
        raise UsageError(f"{where}: {name} is a table of keys; set one of them, for example {table[0]}")
    raise UsageError(f"{where}: unknown key {name}; {_advice(name, keys)}")


_ALIKE = 0.75
"""Below, a part of a name is no misspelling of another one."""

_FEW = 14
"""Keys of a table that an error lists."""


def _advice(name: str, keys: Iterable[str]) -> str:
    """The key that was meant, where one is like it in every part; else what the table that it names has."""
    from difflib import SequenceMatcher

    close = nearest(name, keys)
    parts, others = name.split("."), close.split(".")
    pairs = list(zip(parts, others, strict=True)) if len(parts) == len(others) else [(parts[-1], others[-1])]
    if all(SequenceMatcher(None, part, other).ratio() >= _ALIKE for part, other in pairs):
        return f"the nearest is {close}"
    table = name
    while table := table.rpartition(".")[0]:
        has = list(dict.fromkeys(key[len(table) + 1 :].split(".")[0] for key in keys if key.startswith(f"{table}.")))
        if has:
            more = "" if len(has) <= _FEW else ", ... (`kvbench config`)"
            return f"{table} has {', '.join(has[:_FEW])}{more}"
    return "`kvbench config` shows them all"


def _flatten(
    tree: Mapping[str, Any], keys: Mapping[str, Key], where: str, folder: Path | None, prefix: str = ""
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part, value in tree.items():
        name = prefix + part
        if isinstance(value, Mapping) and name not in keys:
            if not value:
                continue
            values.update(_flatten(value, keys, where, folder, name + "."))
        else:
            values[name] = check(_find(name, keys, where), value, where, folder)
    return values


def _with_field(current: Any, key: Key, name: str, value: Any, layer: Layer) -> dict[str, Any]:
    owner = key.name
    if key.kind == "engines" and isinstance(current, int):
        current = {"engines": current}  # so many, with a key of their own
    if not isinstance(current, Mapping):
        raise UsageError(f"{layer.where}: {owner} is {_shown(current)}, not a table; {name} has nothing to change")
    return {**current, name[len(owner) + 1 :]: value}


def _parse(raw: str, key: Key | None) -> Any:
    import tomllib

    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw
    textual = key is not None and key.kind in ("str", "path", "choice", "choice-or-function")
    textual = textual or (key is not None and key.kind == "names" and not isinstance(value, list))
    return raw if textual and not isinstance(value, str) else value


def _number(key: Key, value: Any, where: str) -> int | float:
    unit = f" {key.unit}" if key.unit else ""
    if isinstance(value, str) and key.kind == "float" and value in ("inf", "Infinity"):
        value = math.inf  # JSON has no infinity: run.json holds the string
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        way = "; 64e9 is 64 GB" if key.unit == "bytes" else ""
        raise UsageError(f"{where}: {key.name} is a number{' of' + unit if unit else ''}, got {_shown(value)}{way}")
    if key.kind == "int":
        if not math.isfinite(value) or value != int(value):
            raise UsageError(f"{where}: {key.name} is a whole number, got {_shown(value)}")
        value = int(value)
    elif key.kind == "float":
        value = float(value)
    if key.low is not None and value < key.low:
        raise UsageError(f"{where}: {key.name} must be at least {key.low:g}{unit}, got {_shown(value)}")
    if key.high is not None and value > key.high:
        raise UsageError(f"{where}: {key.name} must be at most {key.high:g}{unit}, got {_shown(value)}")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
