"""Values beside each other in as many digits as it takes to see that they differ."""

from __future__ import annotations

MOST_DIGITS = 6
"""What summary.csv holds."""


def both(a: float | None, b: float | None) -> tuple[str, str]:
    """Two values of one metric."""
    whole = all(value == int(value) for value in (a, b) if value is not None)
    shown = _value(a, 2, whole), _value(b, 2, whole)
    digits = 2
    while a != b and shown[0] == shown[1] and digits < MOST_DIGITS:
        digits += 1
        shown = _value(a, digits, whole), _value(b, digits, whole)
    return shown


def ratio(value: float | None) -> str:
    """Four digits after the point, more where it would look like 1."""
    if value is None:
        return "-"
    digits = 4
    while value != 1 and digits < 9 and float(f"{value:.{digits}f}") == 1:
        digits += 1
    return f"{value:.{digits}f}"


def _value(value: float | None, digits: int, whole: bool) -> str:
    if value is None:
        return "-"
    if abs(value) < 1:
        return f"{value:.{digits + 2}g}"
    return f"{value:,.0f}" if whole and abs(value) >= 1000 else f"{value:,.{digits}f}"
