"""Stand-ins for modules that an engine imports and that exist only beside a GPU.

Scheduling and caching are Python: of kernels, quantisers and readers of pictures they need no more than that the names
can be imported. Where such a module is not installed, `stand_in` lets its import succeed with a module whose every
attribute is an empty class. A module that is there is always taken.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, MutableSequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Empty(type):
    """Classes that stand for anything: every attribute is another, a call or a decoration leaves all as it is."""

    def __getattr__(cls, name: str) -> Any:
        if name == "__get_pydantic_core_schema__":
            return _any_schema
        if name.startswith("__"):
            raise AttributeError(name)
        return _empty(name)

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        if "is_stand_in" not in vars(cls):
            return super().__call__(*arguments, **named)
        decorates = len(arguments) == 1 and not named and callable(arguments[0])
        return arguments[0] if decorates else cls

    def __iter__(cls) -> Any:
        return iter(())

    def __getitem__(cls, key: Any) -> Any:
        return cls

    def __or__(cls, other: Any) -> Any:
        return cls

    def __ror__(cls, other: Any) -> Any:
        return cls

    def __lt__(cls, other: Any) -> bool:
        return False


def _any_schema(*arguments: Any) -> dict[str, str]:
    """What a data class that names a stand-in as a field's type asks of it."""
    return {"type": "any"}


def _ignore(self: Any, *arguments: Any, **named: Any) -> None:
    pass


def _empty(name: str) -> type:
    return _Empty(name, (), {"is_stand_in": True, "__init__": _ignore})


class _Module(ModuleType):
    __path__: MutableSequence[str]
    __version__ = "99.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _empty(name)
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    """Asked last, so only for what is nowhere."""

    def __init__(self, names: Iterable[str], hidden_from: Iterable[str]) -> None:
        self.names, self.hidden_from = frozenset(names), tuple(f"/{name}/" for name in hidden_from)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in self.names or self._is_asked_by_who_can_do_without():
            return None
        return ModuleSpec(name, self, is_package=True)

    def _is_asked_by_who_can_do_without(self) -> bool:
        """A library that tests for the module, and would use what it finds."""
        frame = sys._getframe(1)
        while frame is not None:
            if any(part in frame.f_code.co_filename for part in self.hidden_from):
                return True
            frame = frame.f_back  # type: ignore[assignment]
        return False

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


def stand_in(names: Iterable[str], hidden_from: Iterable[str] = ()) -> None:
    """From now on these top-level modules can be imported; not by the packages in hidden_from."""
    sys.meta_path.append(_Finder(names, hidden_from))
