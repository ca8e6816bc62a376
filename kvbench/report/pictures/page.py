"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .advice import lever_header, lever_rows
from .chart import Chart, duration
from .folders import RunFolder, Sources
from .gather import charts_of
from .labels import IDENTITY, clocks, differing_keys, drawn, features
from .latency import DOUBT
from .style import CHART, PAGE, THEME, named
from .svg import CHARACTER, to_svg

SECTIONS = (
    ("What each change is worth", ("advice",)),
    ("Latency distributions", ("cdf",)),
    ("Percentile spectra", ("spectrum",)),
    ("Throughput and latency", ("curve",)),
    ("Miss ratio", ("misses",)),
    ("Requests by phase", ("phases", "timeline")),
    ("Tiers", ("tiers",)),
    ("Engines", ("fleet",)),
    ("Over time", ("hits", "occupancy", "batch", "engines")),
    ("Experts", ("experts", "devices")),
    ("Predicted and measured", ("accuracy",)),
)
"""Title and kinds of charts; those of the first section, Figures, stand beside its table."""

NARROW = 358
BROAD = {1: 1360, 2: 664, 3: 432}
"""Widths of a picture: of a phone, and of a column where so many stand beside each other. The page chooses."""

MOST_FOR_ENDS = 0.3
"""Share of a picture's width that names at the ends of lines may take; longer ones are a legend."""

MOST_DIFFERENCES = 12
"""Settings that the head tells."""

HINT_FROM = 6
"""Columns of a table that says on a narrow screen that it scrolls."""

MOST_NAMED = 2
"""Runs that a note names."""

MOST_BESIDE = 4
"""Runs whose heads stand side by side; more are a row each."""

HEAD = ("clock", "cache_state", "preset", "model", "device", "machine", "seed", "fingerprint")
FIGURES = (
    *((f"{name.upper()} {p}", name, p) for name in ("ttft", "tpot", "itl", "e2el") for p in ("p50", "p99")),
    ("sequences", "sequences", "mean"),
    ("finished", "finished", "mean"),
    ("output tokens/s", "output_throughput", "mean"),
    ("goodput/s", "goodput", "mean"),
    ("requests/s", "request_throughput", "mean"),
    ("hit rate", "hit_rate", "mean"),
    ("hit rate, device", "hit_rate_device", "mean"),
    ("hit rate, host", "hit_rate_host", "mean"),
    ("hit rate, storage", "hit_rate_storage", "mean"),
    ("hit rate, lowest engine", "engine_hit_rate_min", "mean"),
    ("load, std / mean", "load_cv", "mean"),
    ("preemptions", "preemptions", "mean"),
)


def to_html(sources: Sources, title: str) -> str:
    """The whole page."""
    sections = "".join(_section(sources, title, kinds) for title, kinds in SECTIONS)
    warnings = clocks([run.head["clock"] for run in sources.runs])
    partial = [run.label for run in sources.runs if not run.document["complete"]]
    if partial:
        warnings.append(f"Interrupted, so a partial result: {', '.join(partial)}.")
    warned = "".join(f'<p class="warn">{escape(text)}</p>' for text in warnings)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{THEME}{PAGE}{CHART}</style></head>\n"
        f"<body><main><h1>{escape(title)}</h1>{_lead(sources)}{warned}{_heads(sources.runs)}{_figures(sources)}{_advices(sources)}"
        f"{sections}</main></body></html>\n"
    )


def _lead(sources: Sources) -> str:
    runs = sources.runs
    parts = [f"{len(runs)} run{'s' * (len(runs) != 1)}"] if runs else []
    parts += [f"{len(table.rows)} points of {table.run}" for table in sources.tables]
    parts += [f"a search for the largest {document['over']}" for document in sources.capacities]
    parts += [f"advice on {document['run']}" for document in sources.advices]
    parts += [f"{len({row['name'] for row in table.rows})} measured cases" for table in sources.accuracies]
    return f'<p class="soft">kvbench: {escape(", ".join(parts))}. Latencies count from the intended arrival.</p>'


def _heads(runs: Sequence[RunFolder]) -> str:
    """Who these runs are: clock, cache state, preset, device, workload, notes."""
    if not runs:
        return ""
    colours = {run.path: colour for run, colour in drawn(runs)}
    columns = [_chip(run, colours.get(run.path)) for run in runs]
    rows = {name.replace("_", " "): [_head(run, name) for run in runs] for name in HEAD} | _differences(runs)
    if len(runs) <= MOST_BESIDE:
        text = _table(["run", *columns], [[name, *cells] for name, cells in rows.items()], "head", markup=True)
    else:
        common = [[name, cells[0]] for name, cells in rows.items() if len(set(cells)) == 1]
        own = {name: cells for name, cells in rows.items() if len(set(cells)) > 1}
        table = [[column, *cells] for column, *cells in zip(columns, *own.values(), strict=True)]
        text = _table(["all runs", ""], common, "head", markup=True)
        text += f"<br>{_table(['run', *own], table, 'head', markup=True)}"
    said = "".join(f"<li>{escape(note)}</li>" for note in _notes(runs))
    return f"{text}{f'<ul>{said}</ul>' if said else ''}"


def _notes(runs: Sequence[RunFolder]) -> list[str]:
    """What must be said beside the numbers, each once, with the runs that it is said of unless these are all."""
    said: dict[str, list[str]] = {}
    for run in runs:
        for note in dict.fromkeys(run.document["notes"]):
            said.setdefault(note, []).append(run.label)
    return [note if len(labels) == len(runs) else f"{_listed(labels)}: {note}" for note, labels in said.items()]


def _listed(labels: Sequence[str]) -> str:
    more = len(labels) - MOST_NAMED
    return "; ".join(labels[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _differences(runs: Sequence[RunFolder]) -> dict[str, list[str]]:
    """Settings that are not the same in all runs: what their names come from."""
    settings = [features(run) for run in runs]
    keys = [key for key in differing_keys(settings) if key not in (*IDENTITY, *HEAD)]
    return {key: [escape(s.get(key, "")) for s in settings] for key in keys[:MOST_DIFFERENCES]}


def _head(run: RunFolder, name: str) -> str:
    value = run.head[name]
    if name == "device":
        return f"{escape(value)}<br><span class=soft>{escape(run.document['step_times'])}</span>"
    return escape(value[:16] if name == "fingerprint" else value)


def _chip(run: RunFolder, colour: int | None) -> str:
    chip = "" if colour is None else _colour(colour)
    return f"{chip}{escape(run.label)}{' (baseline)' if run.baseline else ''}"


def _figures(sources: Sources) -> str:
    """The figures as a table, and beside it divided by those of the baseline."""
    runs = sources.runs
    if not runs:
        return ""
    rows = []
    for title, metric, statistic in FIGURES:
        told = [_told(run, metric, statistic) for run in runs]
        if set(told) != {"-"}:
            rows.append([title, *told])
    columns = ["", *(run.label for run in runs)]
    if len(runs) > MOST_BESIDE:  # a row for each run
        columns, rows = (
            ["", *(row[0] for row in rows)],
            [[run.label, *(row[i + 1] for row in rows)] for i, run in enumerate(runs)],
        )
    note = f"<p class=note>{DOUBT}</p>" if any(cell.endswith("*") for row in rows for cell in row) else ""
    ratios = charts_of(sources, "ratios")
    beside = len(runs) <= MOST_BESIDE
    drawn_ratios = "".join(_figure(chart, f"ratios{i}", 2 if beside else 1) for i, chart in enumerate(ratios))
    table = f"<div>{_table(columns, rows)}{note}</div>"
    return f'<h2>Figures</h2><div class="charts in{2 if beside and ratios else 1}">{table}{drawn_ratios}</div>'


def _advices(sources: Sources) -> str:
    """The answer, the symptoms with their evidence, and every lever that was tried."""
    text = ""
    for found in sources.advices:
        text += f"<section><h2>Advice on {escape(found['run'])}</h2><p>{escape(found['answer'])}</p>"
        for symptom in found["symptoms"]:
            said = "".join(f"<li>{escape(line)}</li>" for line in symptom["evidence"])
            share = f"{100 * symptom['signal']:.0f} % of {', '.join(name.upper() for name in symptom['hurts'])}"
            text += f"<p>{escape(symptom['title'])}: {share}</p><ul>{said}</ul>"
        if found["levers"]:
            text += _table(lever_header(found), lever_rows(found), "head")
        text += f"<p class=note>{escape(found['command'])}</p></section>"
    return text


def _told(run: RunFolder, metric: str, statistic: str) -> str:
    value = run.figure(metric, statistic)
    if value != value:
        return "-"
    if run.summary[metric]["unit"] == "ms":
        doubted = statistic == "p99" and not run.summary[metric]["p99_high"]
        return duration(value) + "*" * doubted
    if "hit_rate" in metric:
        return f"{100 * value:.2f} %"
    if metric == "load_cv":
        return f"{value:.3f}"
    return f"{value:,.1f}" if value % 1 else f"{value:,.0f}"


def _section(sources: Sources, title: str, kinds: Sequence[str]) -> str:
    found = [(kind, chart) for kind in kinds for chart in charts_of(sources, kind)]
    if not found:
        return ""
    beside = _columns(sum(not chart.wide for _, chart in found))
    figures = "".join(_figure(chart, f"{kind}{i}", beside) for i, (kind, chart) in enumerate(found))
    return f'<section><h2>{escape(title)}</h2><div class="charts in{beside}">{figures}</div></section>\n'


def _columns(charts: int) -> int:
    """Charts beside each other that leave no hole, or a small one."""
    return max(charts, 1) if charts <= 3 else 2 if charts == 4 else 3


def _figure(chart: Chart, name: str, beside: int) -> str:
    """The chart for a phone and for its column; the page shows the one that fits."""
    width = BROAD[1 if chart.wide else beside]
    ends = max((len(text) for text, *_ in chart.names), default=0) * CHARACTER <= MOST_FOR_ENDS * width
    pictures = to_svg(chart, NARROW, name, "narrow", ends=False) + to_svg(chart, width, f"{name}w", "broad", ends=ends)
    chip = _colour(chart.run[1]) if chart.run else ""
    return (
        f'<figure id="{chart.key}-{name}"{" class=wide" if chart.wide else ""}><h3>{chip}{escape(chart.heading)}</h3>'
        f"{_legend(chart, ends)}{pictures}"
        f"<figcaption>{f'<p class=note>{escape(chart.note)}</p>' if chart.note else ''}"
        f"<details><summary>Numbers</summary>{_table(chart.header, chart.table)}</details></figcaption></figure>"
    )


def _legend(chart: Chart, ends: bool) -> str:
    """Names and colours. Those at the ends of lines too: a phone has no room for them there."""
    if len(chart.names) < 2 and not chart.legend:
        return ""
    kind = "legend" if chart.legend or not ends else "legend ends"
    names = "".join(f"<span>{_colour(colour, style)}{escape(label)}</span>" for label, colour, style in chart.names)
    return f'<div class="{kind}">{names}</div>'


def _colour(colour: int, style: str = "") -> str:
    kind = f"chip {style}" if style in ("faint", "dash") else "chip"
    return f'<span class="{kind}" style="background:{named(colour)}"></span>'


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], css: str = "", markup: bool = False) -> str:
    said = str if markup else escape
    head = "".join(f'<th scope="col">{said(text)}</th>' for text in header)
    body = "".join(f"<tr>{''.join(f'<td>{said(cell)}</td>' for cell in row)}</tr>" for row in rows)
    kind = f' class="{css}"' if css else ""
    hint = '<p class="hint">scrolls sideways →</p>' if len(header) >= HINT_FROM else ""
    return f'{hint}<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
