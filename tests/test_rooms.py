"""Imports point down, never sideways; read from the syntax tree, so TYPE_CHECKING and local imports count."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kvbench

PACKAGE = Path(kvbench.__file__).parent

LEVELS = (
    ("core",),
    ("kernels", "workload", "metrics"),
    ("report",),
    ("memory", "costs", "model"),
    ("prefix",),
    ("tiers", "experts"),
    ("scheduler",),
    ("client", "routing"),
    ("engine",),
    ("pairs",),
    ("cluster",),
    ("measured",),
    ("offline",),
    ("bench",),
    ("sweep", "gate", "verify", "speed", "fidelity"),
    ("advise",),
    ("cli",),
)
"""From the bottom up; rooms on one level do not know each other."""

LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}


def rooms() -> list[str]:
    return sorted(p.parent.name for p in PACKAGE.glob("*/__init__.py"))


def imported_modules(path: Path, package: str) -> set[str]:
    """Absolute names of all modules that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            found.add(module)
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


def rooms_of(modules: set[str]) -> set[str]:
    """Rooms of kvbench among these modules."""
    parts = [m.split(".") for m in modules]
    return {p[1] for p in parts if p[0] == "kvbench" and len(p) > 1 and p[1] in LEVEL}


def test_every_room_has_a_level():
    assert set(rooms()) <= set(LEVEL)


@pytest.mark.parametrize("room", rooms())
def test_a_room_imports_only_rooms_below_it(room):
    wrong = []
    for path in (PACKAGE / room).rglob("*.py"):
        package = ".".join(["kvbench", *path.relative_to(PACKAGE).parent.parts])
        others = rooms_of(imported_modules(path, package)) - {room}
        wrong += [f"{path.relative_to(PACKAGE)} imports {o}" for o in others if LEVEL[o] >= LEVEL[room]]
    assert wrong == []


def test_no_module_imports_itself_by_way_of_others():
    """Inside a room too, imports inside functions included; the package's own __init__ is no module of a room."""
    paths = {".".join(["kvbench", *p.relative_to(PACKAGE).with_suffix("").parts]): p for p in PACKAGE.rglob("*.py")}
    modules = {name.removesuffix(".__init__"): path for name, path in paths.items() if name != "kvbench.__init__"}
    below = {
        name: imported_modules(path, name if path.name == "__init__.py" else name.rpartition(".")[0]) & set(modules)
        for name, path in modules.items()
    }
    while leaves := {name for name, others in below.items() if not (others - {name}) & set(below)}:
        below = {name: others for name, others in below.items() if name not in leaves}
    assert sorted(below) == []


def test_no_product_code_imports_the_tests():
    for path in PACKAGE.rglob("*.py"):
        assert not any(m.split(".")[0] == "tests" for m in imported_modules(path, "kvbench")), path


@pytest.mark.parametrize(
    "line",
    [
        "from ..engine import step",
        "from ..engine.step import advance",
        "from .. import engine",
        "import kvbench.engine.step",
        "from kvbench import engine",
        "if TYPE_CHECKING:\n    from ..engine.step import advance",
        "def f():\n    from ..engine import step",
    ],
)
def test_the_reader_sees_every_form_of_import(tmp_path, line):
    path = tmp_path / "x.py"
    path.write_text(line)
    assert rooms_of(imported_modules(path, "kvbench.metrics")) == {"engine"}
