"""The report: one HTML file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from .chart import Chart, duration
from .folders import RunFolder, Sources
from .gather import KINDS, charts_of
from .labels import clocks, drawn
from .latency import DOUBT
from .style import CHART, PAGE, THEME, named
from .svg import BROAD, NARROW, to_svg

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
    ("preemptions", "preemptions", "mean"),
)


def to_html(sources: Sources, title: str) -> str:
    """The whole page."""
    sections = "".join(_section(kind, charts_of(sources, kind)) for kind in KINDS)
    warnings = clocks([run.head["clock"] for run in sources.runs])
    partial = [run.label for run in sources.runs if not run.document["complete"]]
    if partial:
        warnings.append(f"Interrupted, so a partial result: {', '.join(partial)}.")
    warned = "".join(f'<p class="warn">{escape(text)}</p>' for text in warnings)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{THEME}{PAGE}{CHART}</style></head>\n"
        f"<body><main><h1>{escape(title)}</h1>{_lead(sources)}{warned}{_heads(sources.runs)}{_figures(sources.runs)}"
        f"{sections}</main></body></html>\n"
    )


def _lead(sources: Sources) -> str:
    runs = sources.runs
    parts = [f"{len(runs)} run{'s' * (len(runs) != 1)}"] if runs else []
    parts += [f"{len(table.rows)} points of {table.run}" for table in sources.tables]
    parts += [f"a search for the largest {document['over']}" for document in sources.capacities]
    return f'<p class="soft">kvbench: {escape(", ".join(parts))}. Latencies count from the intended arrival.</p>'


def _heads(runs: Sequence[RunFolder]) -> str:
    """Who these runs are: clock, cache state, preset, device, workload, notes."""
    if not runs:
        return ""
    colours = {run.path: colour for run, colour in drawn(runs)}
    columns = [_chip(run, colours.get(run.path)) for run in runs]
    rows = {name.replace("_", " "): [_head(run, name) for run in runs] for name in HEAD}
    if len(runs) <= MOST_BESIDE:
        text = _table(["run", *columns], [[name, *cells] for name, cells in rows.items()], "head", markup=True)
    else:
        common = [[name, cells[0]] for name, cells in rows.items() if len(set(cells)) == 1]
        own = {name: cells for name, cells in rows.items() if len(set(cells)) > 1}
        table = [[column, *cells] for column, *cells in zip(columns, *own.values(), strict=True)]
        text = _table(["all runs", ""], common, "head", markup=True)
        text += f"<br>{_table(['run', *own], table, 'head', markup=True)}"
    several = len(runs) > 1
    notes = [(run.label if several else "", note) for run in runs for note in run.document["notes"]]
    said = "".join(f"<li>{escape(f'{label}: {note}' if label else note)}</li>" for label, note in dict.fromkeys(notes))
    return f"{text}{f'<ul>{said}</ul>' if said else ''}"


def _head(run: RunFolder, name: str) -> str:
    value = run.head[name]
    if name == "device":
        return f"{escape(value)}<br><span class=soft>{escape(run.document['step_times'])}</span>"
    return escape(value[:16] if name == "fingerprint" else value)


def _chip(run: RunFolder, colour: int | None) -> str:
    chip = "" if colour is None else f'<span class="chip" style="background:{named(colour)}"></span>'
    return f"{chip}{escape(run.label)}{' (baseline)' if run.baseline else ''}"


def _figures(runs: Sequence[RunFolder]) -> str:
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
    return f"<h2>Figures</h2>{_table(columns, rows)}{note}"


def _told(run: RunFolder, metric: str, statistic: str) -> str:
    value = run.figure(metric, statistic)
    if value != value:
        return "-"
    if run.summary[metric]["unit"] == "ms":
        doubted = statistic == "p99" and not run.summary[metric]["p99_high"]
        return duration(value) + "*" * doubted
    return f"{100 * value:.2f} %" if metric == "hit_rate" else f"{value:,.1f}" if value % 1 else f"{value:,.0f}"


def _section(kind: str, charts: Sequence[Chart]) -> str:
    if not charts:
        return ""
    figures = "".join(_figure(chart, f"{kind}{i}") for i, chart in enumerate(charts))
    return f'<section id="{kind}"><h2>{escape(KINDS[kind].title)}</h2><div class="charts">{figures}</div></section>\n'


def _figure(chart: Chart, name: str) -> str:
    pictures = to_svg(chart, NARROW, name, "narrow")
    if chart.wide:
        pictures += to_svg(chart, BROAD, f"{name}w", "broad")
    legend = "".join(
        f'<span><span class="chip" style="background:{named(colour)}"></span>{escape(label)}</span>'
        for label, colour in chart.legend
    )
    return (
        f"<figure{' class=wide' if chart.wide else ''}><h3>{escape(chart.title)}</h3>"
        f"{f'<div class=legend>{legend}</div>' if legend else ''}{pictures}"
        f"<figcaption>{f'<p class=note>{escape(chart.note)}</p>' if chart.note else ''}"
        f"<details><summary>Numbers</summary>{_table(chart.header, chart.table)}</details></figcaption></figure>"
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], css: str = "", markup: bool = False) -> str:
    said = str if markup else escape
    head = "".join(f'<th scope="col">{said(text)}</th>' for text in header)
    body = "".join(f"<tr>{''.join(f'<td>{said(cell)}</td>' for cell in row)}</tr>" for row in rows)
    kind = f' class="{css}"' if css else ""
    return f'<div class="scroll"><table{kind}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
