"""The table of arrays in docs/arrays.md, from the structs' docstrings: `python docs/arrays.py` writes it anew.

Reads the sources alone. A docstring names its fields as `name, other   what they hold`; an array without such a
line stands with the struct's own sentence.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "arrays.md"

HEAD = """# Every array of the engine

Written by `python docs/arrays.py` from the docstrings of the structs; a test compares. `i8[:,::1]` is int64, two
dimensions, rows contiguous. A shape that a text does not give is that of the struct's own sentence.
"""


def table() -> str:
    """The whole page."""
    return HEAD + "".join(_section(path, node) for path, node in structs())


def structs() -> Iterator[tuple[Path, ast.ClassDef]]:
    """Classes under @struct, in order of file."""
    for path in sorted((ROOT / "kvbench").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and any(ast.unparse(d) == "struct" for d in node.decorator_list):
                yield path, node


def arrays(node: ast.ClassDef) -> dict[str, str]:
    """Field -> type, of the fields that are arrays."""
    fields = [item for item in node.body if isinstance(item, ast.AnnAssign)]
    types = {ast.unparse(item.target): ast.literal_eval(item.annotation) for item in fields
             if isinstance(item.annotation, ast.Constant)}  # fmt: skip
    return {name: text for name, text in types.items() if "[" in text}


def _section(path: Path, node: ast.ClassDef) -> str:
    fields, doc = arrays(node), ast.get_docstring(node) or ""
    if not fields:
        return ""
    said = _said(doc, fields)
    rows: dict[tuple[str, str], list[str]] = {}
    for name, text in fields.items():
        rows.setdefault((text, said.get(name, "")), []).append(name)
    sentence = " ".join(re.split(r"\n\s*\n", doc)[0].split())
    lines = [f"| {', '.join(names)} | `{text}` | {what} |" for (text, what), names in rows.items()]
    place = path.relative_to(ROOT / "kvbench").as_posix()
    return "\n".join(
        [f"\n## {node.name}, `{place}`\n\n{sentence}\n\n| arrays | type | holds |\n|---|---|---|", *lines, ""]
    )


def _said(doc: str, fields: dict[str, str]) -> dict[str, str]:
    """Field -> what its line of the docstring says, with the lines that go on below it."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in doc.splitlines():
        start = re.match(r"((?:\w+, )*\w+)(?: {2,}|: )(\S.*)$", line)
        if start and all(name.isidentifier() for name in start[1].split(", ")) and start[1].split(", ")[0] in fields:
            names = start[1].split(", ")
            found |= dict.fromkeys(names, start[2])
        elif names and line.startswith("    "):
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            names = []
    return {name: text.replace("|", "\\|") for name, text in found.items()}


if __name__ == "__main__":
    PAGE.write_text(table(), encoding="utf-8")
