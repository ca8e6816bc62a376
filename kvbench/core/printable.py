"""Text that came from elsewhere (names in traces, rows of files), as a terminal or a spreadsheet may have it."""

from __future__ import annotations

import re

_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, which move the cursor and colour what follows, and marks that turn the direction of text."""

_FORMULA = "=+-@"
"""What a spreadsheet takes for a formula when a cell begins with it."""


def printable(text: str, keep: str = "") -> str:
    """The text with hidden characters written out: an escape becomes \\x1b. keep: those that stay."""
    return _HIDDEN.sub(lambda found: found[0] if found[0] in keep else _written(found[0]), text)


def csv_text(cell: str) -> str:
    """A cell of a CSV file, quoted where it has to be; what would be a formula begins with an apostrophe."""
    cell = printable(cell)
    if cell.startswith(tuple(_FORMULA)) and not _is_number(cell):
        cell = "'" + cell
    return '"' + cell.replace('"', '""') + '"' if any(c in cell for c in ',"') else cell


def _written(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
