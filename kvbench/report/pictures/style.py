"""Colours, and the style sheet of pages and pictures: light, dark and print, told apart by colour-blind readers."""

from __future__ import annotations

from .chart import PHASE

LIGHT = ("#0072B2", "#D55E00", "#009E73", "#C2659A", "#B87A00", "#2E8FC9", "#7A5195")
"""Of runs, after Okabe and Ito: told apart by colour-blind readers, each at least 3 : 1 on white."""
DARK = ("#4FA8E0", "#FF8A4C", "#2FC39A", "#E39CC4", "#F2B84B", "#8FD0F5", "#B79BDD")
"""The same, on black."""

LIGHT_PHASES = ("#8A8A86", "#C48A00", "#6A5ACD", "#6BA583", "#B5473C", "#8B2F6B", "#3E7F96")
DARK_PHASES = ("#8E8E8A", "#D9A53A", "#9C8FEA", "#5F9A78", "#D8776C", "#C678A8", "#6FB0C6")
"""Of the parts of a request's life: no colour of a run is among the first three of them."""

LIGHT_INK = {"paper": "#FFFFFF", "ink": "#1D1D1B", "soft": "#5E5E5A", "rule": "#E5E5E1", "grey": "#7F7F7B"}
DARK_INK = {"paper": "#141413", "ink": "#ECECE8", "soft": "#A9A9A3", "rule": "#30302D", "grey": "#8A8A86"}

LEGIBLE = 4.5
"""Contrast of text with the paper (WCAG AA)."""


def contrast(one: str, other: str) -> float:
    """Of two #RRGGBB colours, 1 .. 21, as WCAG 2 defines it."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    parts = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in _parts(colour)]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def _parts(colour: str) -> list[float]:
    return [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]


def _legible(colour: str, inks: dict[str, str]) -> str:
    """The colour, mixed with ink until it can be read as text."""
    for share in range(0, 101, 5):
        mixed = [p + (i - p) * share / 100 for p, i in zip(_parts(colour), _parts(inks["ink"]), strict=True)]
        found = "#" + "".join(f"{round(255 * part):02X}" for part in mixed)
        if contrast(found, inks["paper"]) >= LEGIBLE:
            break
    return found


def _variables(runs: tuple[str, ...], phases: tuple[str, ...], inks: dict[str, str]) -> str:
    """c: colours of runs, p: of phases, t and q: the same as text."""
    found = {f"c{i}": colour for i, colour in enumerate(runs)}
    found |= {f"t{i}": _legible(colour, inks) for i, colour in enumerate(runs)}
    found |= {f"p{i}": colour for i, colour in enumerate(phases)}
    found |= {f"q{i}": _legible(colour, inks) for i, colour in enumerate(phases)}
    found |= {**inks, "tgrey": _legible(inks["grey"], inks)}
    return "".join(f"--{name}:{colour};" for name, colour in found.items())


_ON_WHITE, _ON_BLACK = _variables(LIGHT, LIGHT_PHASES, LIGHT_INK), _variables(DARK, DARK_PHASES, DARK_INK)

THEME = f"""
:root {{ color-scheme: light dark; {_ON_WHITE} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_ON_BLACK} }} }}
@media print {{ :root {{ color-scheme: light; {_ON_WHITE} }} }}
"""

CHART = """
svg text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--soft);
  font-variant-numeric: tabular-nums; }
svg .title { font-size: 14px; font-weight: 600; fill: var(--ink); }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .axis { stroke: var(--grey); stroke-width: 1; }
svg .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
svg .thin { stroke-width: .9; opacity: .7; }
svg .dash { stroke-dasharray: 5 3; stroke-width: 1.4; }
svg .dot { stroke: var(--paper); stroke-width: 1; }
svg .area { stroke: none; opacity: .8; }
svg .faint { opacity: .3; }
svg .lead { stroke-width: .6; opacity: .6; fill: none; }
svg .slo { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 2 3; }
svg .slo-name { fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
"""

PAGE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.45;
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-variant-numeric: tabular-nums; }
main { max-width: 1392px; margin: 0 auto; padding: 28px 16px 48px; }
h1 { font-size: 25px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 18px; margin: 40px 0 14px; padding-top: 12px; border-top: 1px solid var(--rule); }
h3 { font-size: 14px; margin: 0 0 6px; font-weight: 600; }
p { margin: 0 0 8px; max-width: 90ch; }
.soft, .note { color: var(--soft); }
.note { font-size: 13px; margin: 4px 0 2px; }
.warn { border-left: 3px solid var(--c1); padding-left: 10px; font-weight: 600; }
.charts { display: grid; gap: 30px 32px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); }
.charts > * { margin: 0; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
svg { display: block; width: 100%; height: auto; }
svg.broad { display: none; }
@media (min-width: 1100px) {
  .in1 { grid-template-columns: 1fr; } .in2 { grid-template-columns: repeat(2, 1fr); }
  .in3 { grid-template-columns: repeat(3, 1fr); }
  svg.narrow { display: none; } svg.broad { display: block; }
  .legend.ends { display: none; }
}
.scroll { overflow-x: auto; --edge: color-mix(in srgb, var(--ink) 22%, transparent);
  background: linear-gradient(to right, var(--paper) 30%, transparent) 0 0 / 40px 100% no-repeat local,
    linear-gradient(to left, var(--paper) 30%, transparent) 100% 0 / 40px 100% no-repeat local,
    linear-gradient(to right, var(--edge), transparent) 0 0 / 12px 100% no-repeat scroll,
    linear-gradient(to left, var(--edge), transparent) 100% 0 / 12px 100% no-repeat scroll; }
.hint { display: none; font-size: 12px; color: var(--soft); }
@media (max-width: 1099px) { .hint { display: block; } }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: 4px 14px 4px 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; color: var(--soft); }
th:first-child, td:first-child { text-align: left; }
table.head { min-width: 60%; }
table.head td { text-align: left; white-space: normal; min-width: 16ch; max-width: 60ch; vertical-align: top; }
table.head td:first-child { min-width: 0; white-space: nowrap; }
table.head th { text-align: left; vertical-align: top; }
.chip { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
.chip.faint { opacity: .35; }
.chip.dash { height: 3px; border-radius: 0; vertical-align: middle; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 12.5px; color: var(--soft); margin-bottom: 6px; }
details { font-size: 12.5px; color: var(--soft); }
summary { cursor: pointer; padding: 4px 0; }
ul { padding-left: 18px; margin: 8px 0; font-size: 13px; color: var(--soft); max-width: 100ch; }
@media print { details { display: none; } figure { break-inside: avoid; } main { padding: 0; } }
"""


def named(colour: int) -> str:
    """A colour of a chart as CSS."""
    if colour >= PHASE:
        return f"var(--p{colour - PHASE})"
    return {-1: "var(--grey)", -2: "var(--ink)"}.get(colour, f"var(--c{colour})")


def named_text(colour: int) -> str:
    """The same for text."""
    if colour >= PHASE:
        return f"var(--q{colour - PHASE})"
    return {-1: "var(--tgrey)", -2: "var(--ink)"}.get(colour, f"var(--t{colour})")


def on_white(colour: int) -> str:
    """A colour of a chart for a picture that has one theme."""
    if colour >= PHASE:
        return LIGHT_PHASES[colour - PHASE]
    return {-1: LIGHT_INK["grey"], -2: LIGHT_INK["ink"]}.get(colour) or LIGHT[colour]
