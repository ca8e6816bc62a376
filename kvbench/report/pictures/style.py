"""Colours, and the style sheet of pages and pictures: light, dark and print, told apart by colour-blind readers."""

from __future__ import annotations

LIGHT = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#6B6B6B", "#B9B9B4")
"""Okabe and Ito, then two more and a light grey; on white."""
DARK = ("#4FA8E0", "#FF8A4C", "#2FC39A", "#E39CC4", "#F2B84B", "#8FD0F5", "#B79BDD", "#A5A5A5", "#6A6A66")
"""The same, on black."""

LIGHT_INK = {"paper": "#FFFFFF", "ink": "#1D1D1B", "soft": "#62625E", "rule": "#E5E5E1", "grey": "#9A9A96"}
DARK_INK = {"paper": "#141413", "ink": "#ECECE8", "soft": "#A3A39D", "rule": "#30302D", "grey": "#7C7C77"}


def _variables(colours: tuple[str, ...], inks: dict[str, str]) -> str:
    found = {**{f"c{i}": colour for i, colour in enumerate(colours)}, **inks}
    return "".join(f"--{name}:{colour};" for name, colour in found.items())


THEME = f"""
:root {{ color-scheme: light dark; {_variables(LIGHT, LIGHT_INK)} }}
@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK, DARK_INK)} }} }}
@media print {{ :root {{ color-scheme: light; {_variables(LIGHT, LIGHT_INK)} }} }}
"""

CHART = """
svg text { font: 11px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: var(--soft);
  font-variant-numeric: tabular-nums; }
svg .title { font-size: 13px; font-weight: 600; fill: var(--ink); }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .axis { stroke: var(--grey); stroke-width: 1; }
svg .line { fill: none; stroke-width: 1.8; stroke-linejoin: round; stroke-linecap: round; }
svg .thin { stroke-width: .9; opacity: .7; }
svg .dash { stroke-dasharray: 5 3; stroke-width: 1.4; }
svg .dot { stroke: var(--paper); stroke-width: 1; }
svg .area { stroke: none; opacity: .75; }
svg .lead { stroke-width: .6; opacity: .6; fill: none; }
svg .slo { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 2 3; }
svg .slo-name { fill: var(--ink); paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }
"""

PAGE = """
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.45;
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; font-variant-numeric: tabular-nums; }
main { max-width: 1232px; margin: 0 auto; padding: 28px 16px 48px; }
h1 { font-size: 24px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 17px; margin: 44px 0 14px; padding-top: 12px; border-top: 1px solid var(--rule); }
h3 { font-size: 14px; margin: 0 0 6px; font-weight: 600; }
p { margin: 0 0 8px; max-width: 75ch; }
.soft, .note { color: var(--soft); }
.note { font-size: 12.5px; margin: 4px 0 2px; }
.warn { border-left: 3px solid var(--c1); padding-left: 10px; font-weight: 600; }
.charts { display: grid; gap: 30px 26px; grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); }
figure { margin: 0; min-width: 0; }
figure.wide { grid-column: 1 / -1; }
svg { display: block; width: 100%; height: auto; }
figure.wide svg.narrow { display: none; }
@media (max-width: 760px) {
  figure.wide svg.narrow { display: block; }
  figure.wide svg.broad { display: none; }
}
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; }
th, td { padding: 4px 14px 4px 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
th { font-weight: 600; color: var(--soft); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); }
table.head td { text-align: left; white-space: normal; min-width: 11ch; max-width: 44ch; vertical-align: top; }
table.head th { text-align: left; vertical-align: top; }
.chip { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 12.5px; color: var(--soft); margin-bottom: 6px; }
details { font-size: 12.5px; color: var(--soft); }
summary { cursor: pointer; padding: 4px 0; }
ul { padding-left: 18px; margin: 8px 0; font-size: 13px; color: var(--soft); max-width: 90ch; }
@media print { details { display: none; } figure { break-inside: avoid; } main { padding: 0; } }
"""


def named(colour: int) -> str:
    """A colour of a chart as CSS."""
    return {-1: "var(--grey)", -2: "var(--ink)"}.get(colour, f"var(--c{colour})")


def on_white(colour: int) -> str:
    """A colour of a chart for a picture that has one theme."""
    return {-1: LIGHT_INK["grey"], -2: LIGHT_INK["ink"]}.get(colour) or LIGHT[colour]
