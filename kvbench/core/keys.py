"""What a configuration key is. Each room declares its own tuple of keys; `bench` joins them into one tree.

A key never knows its value: `core.config` holds values, checks them against the key, and says what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

KINDS = ("int", "float", "str", "bool", "length", "path", "names", "tables", "engines", "choice", "choice-or-function")
"""length: a number (a fixed value) or a table that names a distribution; path: a file, relative to the
file that names it; names: a string or a list of different ones; tables: a list of tables; engines: how many, or a
table of `engines` and of keys that are theirs; choice-or-function: a choice, or FILE.py:NAME with such a path; the
others are what TOML calls them (float takes `inf` where `high` allows it)."""


@dataclass(frozen=True)
class Key:
    """One key of the tree, as `kvbench config` shows it.

    name      dotted, unique: "arrivals.rate"
    kind      one of KINDS
    default   in the unit of the key; for a length a number or a dict
    unit      "tokens", "requests/s", "ms"; "" for a name or a switch
    meaning   one line, says what 0 or "" mean where they are special
    choices   the values of a choice, or those that need no file
    low, high   bounds of a number, both allowed; None is no bound
    """

    name: str
    kind: str
    default: Any
    unit: str
    meaning: str
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"key {self.name} has the unknown kind {self.kind}")
        if self.kind.startswith("choice") != bool(self.choices):
            raise ValueError(f"key {self.name}: choices belong to the kinds of choice, and only to them")


_KIND_OF_TYPE = {"int": "int", "float": "float", "bool": "bool", "str": "str"}


def rule(
    default: Any,
    unit: str,
    meaning: str,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
    *,
    key: Any = None,
    kind: str = "",
    of: tuple[str, ...] = (),
) -> Any:
    """A field of a dataclass of rules that is also the key of its name.

    default   what an engine takes that is built without a configuration; key: the key's default where that differs
    kind      where the annotated type does not say it; the rest as in Key
    of        the policies or protocols that read it, for who checks that; () = all
    """
    said = {"unit": unit, "meaning": meaning, "choices": choices, "low": low, "high": high}
    return field(default=default, metadata={**said, "kind": kind, "of": of, "default": default if key is None else key})


def keys_of(section: str, rules: type) -> tuple[Key, ...]:
    """The keys `section.<field>` of all fields that `rule` made, in their order."""
    return tuple(_key_of(section, f.name, str(f.type), dict(f.metadata)) for f in fields(rules) if f.metadata)


def _key_of(section: str, name: str, annotated: str, said: dict[str, Any]) -> Key:
    del said["of"]
    kind = said.pop("kind") or ("choice" if said["choices"] else _KIND_OF_TYPE[annotated])
    return Key(f"{section}.{name}", kind, **said)
