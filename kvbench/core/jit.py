"""The jit decorators and the struct helper: the only place that knows how Numba is used.

    @jit        an inner function; compiled into its callers, never cached on its own
    @entry      a function called from Python: cached on disk, releases the GIL
    @struct     a class of annotated fields: a structref when jitted, a plain class under NUMBA_DISABLE_JIT=1

Numba does not notice an edit to a callee in another file, and its flags are not part of the cache key.
Therefore the cache lives in a folder named by a digest of the package's sources, Numba's version, the
flags and the CPU (`cache_folder.py`). It is not in the package, so a read-only installation works, and Numba
replaces its files atomically, so two processes may compile at once.
"""

from __future__ import annotations

import gc
import hashlib
import sys
from collections.abc import Callable
from dataclasses import fields as fields_of
from functools import cached_property, update_wrapper
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numba
import numpy as np
from numba import config as numba_config
from numba import njit, types
from numba.core import event
from numba.experimental import structref

from . import compile_watch as _compile_watch  # noqa: F401  # from here on it hears of what compiles
from .cache_folder import cache_root, choose_cache

PLAIN = bool(numba_config.DISABLE_JIT)
"""True when NUMBA_DISABLE_JIT=1: the same code runs as plain Python."""

_JITTED_ROOMS = (
    "core",
    "kernels",
    "costs",
    "memory",
    "prefix",
    "experts",
    "tiers",
    "scheduler",
    "client",
    "routing",
    "engine",
    "pairs",
    "cluster",
    "measured",
    "verify",
    "offline",
)
"""Rooms whose code may end up in machine code; a test compares this with where `core.jit` is imported."""

_FLAGS = ("BOUNDSCHECK", "OPT", "DEBUG_NRT", "CPU_NAME", "CPU_FEATURES", "LOOP_VECTORIZE", "SLP_VECTORIZE")

T = TypeVar("T")


def source_digest() -> str:
    """Digest of everything that changes machine code and that Numba's own cache key leaves out."""
    package = Path(__file__).resolve().parent.parent
    h = hashlib.sha256()
    for path in sorted(p for room in _JITTED_ROOMS for p in (package / room).rglob("*.py")):
        h.update(path.relative_to(package).as_posix().encode())
        h.update(path.read_bytes())
    h.update(numba.__version__.encode())
    for flag in _FLAGS:
        h.update(f"{flag}={getattr(numba_config, flag, None)}".encode())
    h.update(_cpu_name().encode())
    return h.hexdigest()[:16]


def _cpu_name() -> str:
    from llvmlite import binding

    return str(binding.get_host_cpu_name())


def _load_array_math_without_blas() -> None:
    """Numba's array math looks for a BLAS by importing scipy.linalg, a quarter of a second at every start.

    Nothing here multiplies matrices in jitted code; code that does has to import scipy.linalg before this.
    """
    if "scipy.linalg" in sys.modules:
        return
    sys.modules["scipy.linalg"] = None  # type: ignore[assignment]  # makes its import fail at once
    try:
        import numba.np.arraymath  # noqa: F401
    finally:
        del sys.modules["scipy.linalg"]


_load_array_math_without_blas()

CACHE_DIR = cache_root() / source_digest() if PLAIN else choose_cache(source_digest())
if not PLAIN:
    numba_config.CACHE_DIR = str(CACHE_DIR)


class _RareCollections(event.Listener):
    """While something compiles, Python looks for garbage seldom.

    A compiler allocates millions of objects that live until it is done; looking through them again and again takes a
    sixth of its time.
    """

    _THRESHOLDS = (50_000, 20, 50)

    def __init__(self) -> None:
        self._depth = 0
        self._usual = gc.get_threshold()

    def on_start(self, event: Any) -> None:
        if self._depth == 0:
            self._usual = gc.get_threshold()
            gc.set_threshold(*self._THRESHOLDS)
        self._depth += 1

    def on_end(self, event: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            gc.set_threshold(*self._usual)


event.register("numba:compile", _RareCollections())  # type: ignore[no-untyped-call]


class _Lazy:
    """An inner function, whose dispatcher is made when something compiles that calls it.

    Numba's dispatcher takes a quarter of a millisecond to make, and there are hundreds; what is loaded from the disk
    cache has its callees in it and needs none of theirs.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        update_wrapper(self, function)
        self.py_func, self._options = function, options

    @cached_property
    def dispatcher(self) -> Any:
        return njit(**self._options)(self.py_func)

    @property
    def _numba_type_(self) -> Any:
        """What Numba takes a global of this name for."""
        return self.dispatcher._numba_type_

    def __getattr__(self, name: str) -> Any:
        if name in ("dispatcher", "py_func", "_options"):  # not made yet
            raise AttributeError(name)
        return getattr(self.dispatcher, name)

    def __call__(self, *args: Any) -> Any:
        if "no_cpython_wrapper" in self._options:  # Numba would not say so, and crash
            raise TypeError(f"{self.py_func.__qualname__} is called from jitted code only; Python calls an @entry")
        return self.dispatcher(*args)


def _lazy(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    return lambda function: function if PLAIN else _Lazy(function, options)


jit = _lazy(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True)
"""Decorator of inner functions: called from jitted code only, and cheaper to compile for it."""

inline = _lazy(inline="always")
"""Decorator of functions with one caller in a compiled unit, or of a few lines: they become part of it.

Every compiled function links, and optimises again, all that it calls, so each level of calls costs; what is
inlined at this stage does not.
"""

entry = njit(cache=True, nogil=True, error_model="numpy")
"""Decorator of functions that Python calls: cached on disk."""

_SCALARS = {
    "i8": types.int64,
    "i4": types.int32,
    "f8": types.float64,
    "u8": types.uint64,
    "b1": types.boolean,
    "u1": types.uint8,
}


def _field_type(spec: Any, module: ModuleType) -> Any:
    """The Numba type of a field: "i8", "i4[::1]", "f8[:,::1]", "i4[:]" (strided), or a named struct or type."""
    base, _, dims = str(spec).strip("'\"").partition("[")
    if base in _SCALARS:
        scalar = _SCALARS[base]
        return types.Array(scalar, dims.count(",") + 1, "C" if "::1" in dims else "A") if dims else scalar
    named = getattr(module, base)
    return getattr(named, "numba_type", named)


class _StructType(types.StructRef):
    """A struct's type, named by its class: Numba's own name spells out all fields of all structs in it.

    That name, more than ten thousand letters, would be a part of every symbol, and of every comparison of two types.
    """

    def __init__(self, fields: Any) -> None:
        super().__init__(fields)
        self.name = f"{type(self).__module__}.{type(self).__qualname__}"

    def get_data_type(self) -> Any:
        payload = super().get_data_type()
        payload.name = f"{self.name}.payload"
        return payload


def struct(cls: type[T]) -> type[T]:
    """Make a state struct of a class whose annotations name field types.

    Jitted: a structref that can be built and read from Python and from jitted code. The constructor and the
    reader are compiled under the declaring file's name, so that Numba's disk cache takes them (a stock
    structref compiles again at every start). Plain: a class with slots (structref fails without jit).
    """
    fields = list(cls.__annotations__)
    module = sys.modules[cls.__module__]
    if PLAIN:
        return _plain_struct(cls, fields)
    type_name = cls.__name__ + "Type"
    struct_type = type(type_name, (_StructType,), {"__module__": cls.__module__, "__qualname__": type_name})
    setattr(module, type_name, struct_type)  # Numba's cache pickles the type by reference
    structref.register(struct_type)
    typed_fields = [(f, _field_type(cls.__annotations__[f], module)) for f in fields]

    source = (
        f"def {cls.__name__}__new({', '.join(fields)}):\n    return _proxy({', '.join(fields)})\n"
        f"def {cls.__name__}__read(s):\n    return ({', '.join('s.' + f for f in fields)},)\n"
    )
    scope: dict[str, Any] = {"__name__": cls.__module__}
    exec(compile(source, str(module.__file__), "exec"), scope)
    signature = [t for _, t in typed_fields]
    read = njit(cache=True)(scope[f"{cls.__name__}__read"])

    namespace: dict[str, Any] = {
        "__slots__": (),
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
        "fields": tuple(fields),
        "numba_type": struct_type(typed_fields),
        "read": lambda self: dict(zip(fields, read(self), strict=True)),
    }
    for index, field in enumerate(fields):
        namespace[field] = property(lambda self, index=index: read(self)[index])
    namespace["__new__"] = lambda kind, *args: new(*_typed(args, signature, fields, cls.__name__))
    proxy = type(cls.__name__, (structref.StructRefProxy,), namespace)
    structref.define_proxy(proxy, struct_type, fields)
    scope["_proxy"] = proxy
    new: Any = njit(cache=True)(scope[f"{cls.__name__}__new"])
    if any(isinstance(kind, types.FunctionType) for kind in signature):  # else each function is a type of its own
        new = _Typed(namespace["numba_type"](*signature), scope[f"{cls.__name__}__new"])
    return proxy


_NUMBER_TYPES = {"int": "i8", "float": "f8", "bool": "b1"}


def with_numbers_of(rules: type) -> Callable[[type[T]], type[T]]:
    """Give a class, before it becomes a struct, a field for every number and switch of a dataclass of rules."""
    numbers = {f.name: _NUMBER_TYPES[str(f.type)] for f in fields_of(rules) if str(f.type) in _NUMBER_TYPES}

    def add(cls: type[T]) -> type[T]:
        cls.__annotations__ = {**numbers, **cls.__annotations__}
        return cls

    return add


class _Typed:
    """A function that is compiled for one signature when it is called first."""

    def __init__(self, signature: Any, function: Any) -> None:
        self._signature, self._function = signature, function
        self._compiled: Any = None

    def __call__(self, *args: Any) -> Any:
        if self._compiled is None:
            self._compiled = njit(self._signature, cache=True)(self._function)
        return self._compiled(*args)


def _typed(args: tuple[Any, ...], signature: list[Any], fields: list[str], name: str) -> list[Any]:
    """The constructor's arguments, checked: one wrong dtype would compile a second engine."""
    if len(args) != len(fields):
        raise TypeError(f"{name} takes {len(fields)} fields, got {len(args)}")
    out = []
    for value, kind, field in zip(args, signature, fields, strict=True):
        if isinstance(kind, types.Array):
            if not _is_plain_array(value, kind) and numba.typeof(value) != kind:
                raise TypeError(f"{name}.{field} wants {kind}, got {numba.typeof(value)}")
            out.append(value)
        elif isinstance(kind, types.Float):
            out.append(float(value))
        elif isinstance(kind, types.Boolean):
            out.append(bool(value))
        elif isinstance(kind, types.Integer):
            out.append(int(value) if kind.signed else np.uint64(value))
        else:
            out.append(value)
    return out


def _is_plain_array(value: Any, kind: types.Array) -> bool:
    """Whether it certainly is of that type: Numba's own answer takes ten times as long, and there are hundreds."""
    return (
        type(value) is np.ndarray
        and value.ndim == kind.ndim
        and value.dtype == _DTYPES.get(kind.dtype)
        and value.flags.carray
    )


_DTYPES = {t: np.dtype(str(t)) for t in (types.int64, types.int32, types.uint64, types.float64, types.uint8)}


class Still:
    """A struct as it is now, for who reads many of its fields in Python: each part is read once, when it is asked for.

    Reading one field of a struct makes Python objects of all of them. Arrays are the struct's own.
    """

    def __init__(self, state: Any) -> None:
        self._state = state

    def read(self) -> dict[str, Any]:
        values: dict[str, Any] = self._state.read()
        return values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for field, value in self.read().items():
            self.__dict__[field] = Still(value) if hasattr(type(value), "numba_type") else value
        return self.__dict__[name]


def still(state: T) -> T:
    return state if PLAIN else Still(state)  # type: ignore[return-value]


def _plain_struct(cls: type[T], fields: list[str]) -> type[T]:
    def init(self: Any, *args: Any) -> None:
        if len(args) != len(fields):
            raise TypeError(f"{cls.__name__} takes {len(fields)} fields, got {len(args)}")
        for field, value in zip(fields, args, strict=True):
            setattr(self, field, value)

    return type(
        cls.__name__,
        (),
        {
            "__slots__": tuple(fields),
            "__init__": init,
            "__module__": cls.__module__,
            "__doc__": cls.__doc__,
            "fields": tuple(fields),
            "read": lambda self: {f: getattr(self, f) for f in fields},
        },
    )
