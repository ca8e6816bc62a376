"""What `kvbench advise` found, as a table of at most 100 columns, a document, a CSV file and best.toml."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..core.config import toml_text
from .grid import csv_line
from .record import SCHEMA, RunRecord
from .table import grid, labelled, note, run_head

LEVER_WIDTH = 24
"""Of the table's first column, so that five metrics stand beside it."""

BETTER, WORSE, NOT_RUN = "better", "worse", "not run"
TITLES = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2el": "E2EL"}


@dataclass(frozen=True)
class SymptomLine:
    """signal, threshold: shares of the latencies in `hurts`. weight: of the time from arrival to end."""

    name: str
    title: str
    signal: float
    threshold: float
    weight: float
    hurts: tuple[str, ...]
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Effect:
    """Of one metric: means over the seeds on both sides, their ratio with its 95 % interval over the pairs."""

    metric: str
    unit: str
    before: float | None
    after: float | None
    ratio: float | None
    low: float | None
    high: float | None
    verdict: str


@dataclass(frozen=True)
class LeverLine:
    """One change that was tried.

    verdict   of the metrics that are to become better: better, worse, no difference, cannot tell; not run
    kept      share of the sequences that kept the joint promise; None: there is none
    keeps     every promise is kept under it; promised: there is one
    harm      sum of the logarithms of what got worse
    alike     other values of the lever, "key=value" each, that came to the same figures
    error     why it could not run
    command   that repeats the comparison
    """

    lever: str
    changes: tuple[str, ...]
    cost: str
    devices: float
    command: str
    verdict: str
    ratio: float | None = None
    kept: float | None = None
    promised: bool = False
    keeps: bool = False
    effects: tuple[Effect, ...] = ()
    worse: tuple[str, ...] = ()
    harm: float = 0.0
    error: str = ""
    alike: tuple[str, ...] = ()


@dataclass(frozen=True)
class Advice:
    """record: of the first run. promises: as the options take them. target: metrics that are to become better.
    levers: best first. seeds: that were run; one where nothing in the workload is drawn.
    """

    record: RunRecord
    command: str
    promises: tuple[str, ...]
    broken: tuple[str, ...]
    kept: float | None
    symptoms: tuple[SymptomLine, ...]
    target: tuple[str, ...]
    levers: tuple[LeverLine, ...]
    seeds: tuple[int, ...]
    left_out: int = 0

    @property
    def best(self) -> LeverLine | None:
        """The first lever, where it helps."""
        return self.levers[0] if self.levers and self.levers[0].verdict == BETTER else None


def answer(found: Advice) -> str:
    """In one or two sentences."""
    if not found.symptoms:
        if found.broken:
            return f"{_named(found.broken)} broken, and no symptom says why: no lever was tried."
        kept = "every promise is kept" if found.promises else "no symptom reaches its threshold"
        return f"Nothing is wrong: {kept}."
    first = found.symptoms[0].title
    if found.promises and not found.broken:
        return f"Every promise is kept. Seen all the same: {', '.join(s.title for s in found.symptoms)}."
    best = found.best
    if best is None:
        return f"{_capital(first)}; no lever that was tried helps."
    effects = {e.metric: e for e in best.effects}
    said = ", ".join(
        f"{title_of(m)} {_change(effects[m], True)}{_values(effects[m])}" for m in found.target if m in effects
    )
    worse = f" Worse: {', '.join(best.worse)}." if best.worse else " Nothing else gets worse."
    short = "" if best.keeps or not found.promises else " It does not keep every promise."
    return f"{_capital(first)}: set {' '.join(best.changes)}; {said}. It costs {best.cost}.{worse}{short}"


def advice_table(found: Advice) -> str:
    """Head, symptoms with their evidence, levers, the answer as the last lines."""
    parts = [run_head(found.record, found.record.cache_state)]
    if found.promises:
        state = f"broken: {_named(found.broken)}" if found.broken else "kept"
        share = "" if found.kept is None else f"; {100 * found.kept:.2f} % of sequences kept the joint one"
        parts.append(labelled([("promises", f"{' '.join(found.promises)}: {state}{share}")]))
    parts += [_symptom(i, s) for i, s in enumerate(found.symptoms, 1)]
    if found.levers:
        parts += [_levers(found), _keys(found)]
    if found.left_out:
        parts.append(note(f"{found.left_out} more changes fit and were not tried; --budget raises the number."))
    return "\n\n".join([*parts, note(answer(found))])


def _symptom(number: int, s: SymptomLine) -> str:
    hurts = ", ".join(TITLES[h] for h in s.hurts)
    weak = "" if s.signal >= s.threshold else ", weak"
    head = f"{s.title}: {100 * s.signal:.0f} % of {hurts} (from {100 * s.threshold:.0f} % on{weak})"
    return labelled([(f"symptom {number}", head), *(("", line) for line in s.evidence)])


def _levers(found: Advice) -> str:
    shown = _shown_metrics(found)
    kept = ["kept %"] if found.kept is not None else []
    rows = []
    for i, line in enumerate(found.levers, 1):
        effects = {e.metric: e for e in line.effects}
        cells = [_change(effects[m]) if m in effects else "-" for m in shown]
        share = [] if not kept else ["-" if line.kept is None else f"{100 * line.kept:.1f}"]
        keeps = ", kept" if line.promised and line.keeps and line.verdict != NOT_RUN else ""
        rows.append([_wrapped(f"{i} {line.lever}"), *cells, *share, line.verdict + keeps])
    align = ("left", *("right",) * (len(shown) + len(kept)), "left")
    return grid(["lever", *map(title_of, shown), *kept, "verdict"], rows, align)


def _wrapped(lever: str) -> str:
    """Two levers at once are long: on lines of their own."""
    import textwrap

    return "\n".join(textwrap.wrap(lever, LEVER_WIDTH, subsequent_indent="  "))


def _shown_metrics(found: Advice) -> list[str]:
    """p50 and p99 of the latencies that are to become better, then the tails of the others, as many as fit."""
    names = list(dict.fromkeys(metric.partition(".")[0] for metric in found.target))
    first = [f"{name}.{p}" for name in names for p in ("p50", "p99")]
    others = [f"{name}.p99" for name in TITLES if name not in names]
    return [*first, *others][:5]


def _keys(found: Advice) -> str:
    rows = []
    for i, line in enumerate(found.levers, 1):
        said = [f"costs {line.cost}"] if line.verdict == BETTER else []
        said += [f"worse: {', '.join(line.worse)}"] if line.worse else []
        said += [f"the same with {', '.join(line.alike)}"] if line.alike else []
        said += [line.error] if line.error else []
        rows.append((f"{i}", "; ".join([" ".join(line.changes), *said])))
    return labelled(rows)


def advice_csv(found: Advice) -> Iterator[str]:
    """A row for each lever and metric."""
    names = ("before", "after", "ratio", "low", "high", "verdict")
    yield csv_line(["run", "rank", "lever", "keys", "lever_verdict", "metric", "unit", *names, "command"])
    for i, line in enumerate(found.levers, 1):
        head = [found.record.run, str(i), line.lever, " ".join(line.changes), line.verdict]
        for e in line.effects:
            cells = ["" if getattr(e, name) is None else str(getattr(e, name)) for name in names]
            yield csv_line([*head, e.metric, e.unit, *cells, line.command])
        if not line.effects:
            yield csv_line([*head, "", "", *("" for _ in names), line.command])


def advice_document(found: Advice) -> dict[str, Any]:
    """What `--json` prints and advice.json holds."""
    best = found.best
    return {
        "schema": SCHEMA,
        "run": found.record.run,
        "fingerprint": found.record.fingerprint,
        "command": found.command,
        "promises": list(found.promises),
        "broken": list(found.broken),
        "kept": found.kept,
        "seeds": list(found.seeds),
        "healthy": not found.symptoms and not found.broken,
        "symptoms": [asdict(s) for s in found.symptoms],
        "target": list(found.target),
        "levers": [asdict(line) for line in found.levers],
        "left_out": found.left_out,
        "best": None if best is None else list(best.changes),
        "answer": answer(found),
    }


def best_toml(given: Mapping[str, Any], found: Advice) -> Iterator[str]:
    """The configuration with the best lever, as `kvbench run best.toml` takes it.

    given   nested tables: what the user set, with the changes of the best lever laid over it
    """
    best = found.best
    yield f"# {found.command}\n# {answer(found)}\n"
    if best is not None:
        yield f"# {best.command}\n"
    plain = {name: value for name, value in given.items() if name != "phase"}
    for name, value in plain.items():
        if not isinstance(value, Mapping):
            yield f"{name} = {toml_text(value)}\n"
    for name, value in plain.items():
        if isinstance(value, Mapping):
            yield f"\n[{name}]\n"
            yield from (f"{key} = {toml_text(one)}\n" for key, one in value.items())
    for phase in given.get("phase", ()):
        yield "\n[[phase]]\n"
        yield from (f"{key} = {toml_text(one)}\n" for key, one in phase.items())


def title_of(metric: str) -> str:
    """TTFT p99."""
    name, _, statistic = metric.partition(".")
    return f"{TITLES.get(name, name)} {statistic}".rstrip()


def _change(e: Effect, with_interval: bool = False) -> str:
    if e.ratio is None:
        return "-"
    text = f"{100 * (e.ratio - 1):+.1f} %"
    if with_interval and e.low is not None and e.high is not None:
        text += f" ({100 * (e.low - 1):+.1f} .. {100 * (e.high - 1):+.1f})"
    return text


def _values(e: Effect) -> str:
    """Before and after, in its unit."""
    return "" if e.before is None or e.after is None else f", {e.before:,.1f} -> {e.after:,.1f} {e.unit}"


def _named(latencies: Sequence[str]) -> str:
    return ", ".join(TITLES.get(name, name) for name in latencies)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
