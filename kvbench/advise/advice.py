"""The whole way from a run to an answer: look at it, name its symptoms, try levers on the same requests, rank them.

base run under every seed -> symptoms -> options that fit -> a trial of each under the same seeds
                                      -> the best two together -> ranked lines
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from ..bench.configure import Configured
from ..bench.replicates import SEED_OPTION
from ..bench.run import Progress
from ..bench.system import build_system
from ..core.config import Config
from ..core.errors import KvbenchError, UsageError
from ..gate.pairing import Group, compare_group
from ..gate.runs import Run
from ..gate.verdict import BETTER, INCONCLUSIVE, SAME, WORSE, Comparison, geometric_mean
from ..metrics.slo import Promise
from ..report.advice import NOT_RUN, Advice, Effect, LeverLine, SymptomLine, title_of
from ..report.record import RunRecord
from ..sweep.parallel import run_tasks
from .evidence import Evidence
from .levers import options_for
from .option import QUALITY, Option, do_not_clash, together, within
from .rule import Symptom
from .symptoms import find_symptoms
from .trial import Trial, Tried, broken_by, try_one

Change = tuple[str, str]
ConfigureWith = Callable[[list[Change]], Configured]

SAME_WITHIN = 0.02
"""A change of less is none: nobody would turn a lever for it."""

_LITTLE = 0.9
"""A lever that leaves more of the tails than this is no answer where devices are one."""

_ABOUT = 0.25
"""Logarithms of tails that are no further apart than this are about the same."""

_NEARLY = 0.1
"""The same, where only the number of keys differs."""

KEPT_SHARE = 0.99
"""Of the sequences: a joint promise is kept."""

NO_DIFFERENCE, CANNOT_TELL = "no difference", "cannot tell"
_ORDER = (BETTER, CANNOT_TELL, NO_DIFFERENCE, WORSE, NOT_RUN)

METRICS = (
    *(f"{name}.{p}" for name in ("ttft", "tpot", "itl", "e2el") for p in ("p50", "p99")),
    *("output_throughput", "slo_share", "hit_rate", "preemptions"),
)
"""What a lever is told by; the latencies and the throughput may get worse."""

_MAY_GET_WORSE = METRICS[:9]


@dataclass(frozen=True)
class Question:
    """What is asked.

    configure   from changes on top of what the user said to a configuration
    command     (command, changes) -> the command line that repeats it
    budget      changes tried at most
    """

    configure: ConfigureWith
    command: Callable[[str, Sequence[str]], str]
    promises: tuple[Promise, ...]
    seeds: tuple[int, ...]
    budget: int
    jobs: int


def advise(question: Question, progress: Progress) -> Advice:
    """Answer it. UsageError: it cannot run, or its clock is no modelled one."""
    system = build_system(question.configure([]).config)
    if system.config["clock"] != "modelled":
        raise UsageError("advise compares runs on the modelled clock: leave --clock out, or use kvbench ab")
    base = _base(question, progress)
    broken = _broken(base, system.config)
    symptoms = find_symptoms([one.evidence for one in base if one.evidence], broken)
    target = _target(symptoms, broken)
    seeds = question.seeds[: len(base)]
    lines: list[LeverLine] = []
    fitting: list[Option] = []
    if symptoms and (broken or not _promised(question, system.config)):
        fitting = options_for((s.name for s in symptoms), system, _middle(base))
        options = within(fitting, question.budget)
        weigh = partial(_line, question, base, target)
        lines = [weigh(o, t) for o, t in _try(question, options, seeds, progress)]
        pairs = _pairs(options, lines, symptoms)
        lines += [weigh(o, t) for o, t in _try(question, pairs, seeds, progress)]
        lines = alike_as_one(sorted(lines, key=_rank))
    record = base[0].record
    assert record is not None
    return Advice(
        record=record,
        command=question.command("advise", ()),
        promises=_promised(question, system.config),
        broken=tuple(broken),
        kept=_mean_kept(base),
        symptoms=tuple(SymptomLine(**vars(s)) for s in symptoms),
        target=target,
        levers=tuple(lines),
        seeds=seeds,
        left_out=len(fitting) - len(within(fitting, question.budget)),
    )


def _base(question: Question, progress: Progress) -> list[Tried]:
    """As it is, under every seed; under one where all draw the same workload."""
    trials = [
        Trial(i, _under(question, seed, ()), question.promises, look=True) for i, seed in enumerate(question.seeds)
    ]
    found = _in_order(trials, question.jobs, progress)
    if error := next((one.error for one in found if one.error), ""):
        raise UsageError(error)
    prints = {one.record.fingerprint for one in found if one.record}
    return found[:1] if len(prints) == 1 else found


def _try(
    question: Question, options: Sequence[Option], seeds: Sequence[int], progress: Progress
) -> list[tuple[Option, list[Tried]]]:
    """Each under every seed. One whose keys do not go together is told, not run."""
    configured: list[list[Configured]] = []
    wrong: dict[int, str] = {}
    for i, option in enumerate(options):
        configured.append([])
        try:
            configured[i] += [_under(question, seed, option.changes) for seed in seeds]
            build_system(configured[i][0].config)
        except KvbenchError as error:
            wrong[i] = str(error)
    runnable = [c for i, own in enumerate(configured) if i not in wrong for c in own]
    trials = [Trial(i, one, question.promises) for i, one in enumerate(runnable)]
    found = iter(_in_order(trials, question.jobs, progress))
    return [
        (o, [Tried(0, error=wrong[i])]) if i in wrong else (o, [next(found) for _ in seeds])
        for i, o in enumerate(options)
    ]


def _in_order(trials: Sequence[Trial], jobs: int, progress: Progress) -> list[Tried]:
    done: list[Tried] = []
    for one in run_tasks(try_one, trials, jobs):
        done.append(one)
        progress(len(done), len(trials))
    return sorted(done, key=lambda one: one.index)


def _under(question: Question, seed: int, changes: Sequence[str]) -> Configured:
    return question.configure([("--set", text) for text in changes] + [(SEED_OPTION, f"seed={seed}")])


def _promised(question: Question, config: Config) -> tuple[str, ...]:
    joint = [f"{name}:{bound:g}" for name, bound in config.section("slo").items() if bound]
    return (*joint, *map(str, question.promises))


def _broken(base: Sequence[Tried], config: Config) -> list[str]:
    """Latencies whose promise most of the seeds break."""
    found = [latency for one in base for latency in broken_by(one, config.section("slo"), KEPT_SHARE)]
    return [name for name in dict.fromkeys(found) if 2 * found.count(name) > len(base)]


def _middle(base: Sequence[Tried]) -> Evidence:
    """Of the first seed; what levers choose their values by need not be exact."""
    assert base[0].evidence is not None
    return base[0].evidence


def _target(symptoms: Sequence[Symptom], broken: Sequence[str]) -> tuple[str, ...]:
    """The tails that are to become better: those of broken promises, else those that the heaviest symptoms lengthen."""
    heavy = [s for s in symptoms if 2 * s.weight >= symptoms[0].weight]
    names = broken or [name for s in heavy for name in s.hurts]
    return tuple(f"{name}.p99" for name in dict.fromkeys(names))


def _line(
    question: Question, base: Sequence[Tried], target: Sequence[str], option: Option, tried: Sequence[Tried]
) -> LeverLine:
    error = next((one.error for one in tried if one.error), "")
    command = question.command("ab", option.changes)
    line = LeverLine(option.lever, option.changes, option.cost, option.devices, command, NOT_RUN, error=error)
    if error:
        return line
    sides = [[_values(one.record) for one in side if one.record] for side in (base, tried)]
    group = Group("", tuple(zip(*sides, strict=True)))
    compared = compare_group(group, METRICS)
    aimed = geometric_mean([c for c in compared if c.metric in target], group.clock)
    worse = [c for c in compared if c.metric in _MAY_GET_WORSE and c.metric not in target and _is_worse(c)]
    return replace(
        line,
        verdict=_verdict(aimed),
        ratio=None if aimed is None else aimed.ratio,
        kept=_mean_kept(tried),
        promised=bool(question.promises) or any(_slo(one) for one in tried),
        keeps=not any(broken_by(one, _slo(one), KEPT_SHARE) for one in tried),
        effects=tuple(
            Effect(c.metric, c.unit, c.baseline, c.candidate, c.ratio, c.low, c.high, _felt(c)) for c in compared
        ),
        harm=math.fsum(abs(math.log(c.ratio)) for c in worse if c.ratio),
        worse=tuple(f"{title_of(c.metric)} {100 * ((c.ratio or 1) - 1):+.1f} %" for c in worse),
    )


def _values(record: RunRecord) -> Run:
    """What `gate` compares of a run."""
    scalars = {name: (value, unit) for name, (value, unit) in record.summary.scalars.items() if name in METRICS}
    for name, d in record.summary.latencies.items():
        scalars |= {f"{name}.{p}": (getattr(d, p), "ms") for p in ("p50", "p99")}
    values = {name: None if value is None else float(value) for name, (value, _) in scalars.items()}
    return Run({"clock": record.clock}, values, {name: unit for name, (_, unit) in scalars.items()}, ())


def _verdict(aimed: Comparison | None) -> str:
    if aimed is None or aimed.verdict == INCONCLUSIVE or aimed.ratio is None:
        return CANNOT_TELL
    felt = _felt(aimed)
    return NO_DIFFERENCE if felt == SAME else felt


def _felt(c: Comparison) -> str:
    """The verdict of a metric: what changes by less than anybody would turn a lever for is the same."""
    small = c.ratio is not None and abs(c.ratio - 1) < SAME_WITHIN
    return SAME if small and c.verdict in (BETTER, WORSE) else c.verdict


def _is_worse(c: Comparison) -> bool:
    return _felt(c) == WORSE and c.ratio is not None


def alike_as_one(lines: Sequence[LeverLine]) -> list[LeverLine]:
    """Of changes that came to the very same figures the first, which names the others: they are one answer."""
    first: dict[object, LeverLine] = {}
    for line in lines:
        seen = (line.devices, line.effects or line.changes)
        if seen not in first:
            first[seen] = line
        elif line.lever == first[seen].lever:
            first[seen] = replace(first[seen], alike=(*first[seen].alike, " ".join(line.changes)))
        elif "+" not in line.lever:
            first[line.changes] = line
    return list(first.values())


def _rank(line: LeverLine) -> tuple[float, ...]:
    """What keeps the promises comes first, then what needs no more devices (and does not do next to nothing), then what
    helps most; of those that keep the promises, first what harms least; of two that help about as much, the one that
    leaves the answers alone, then the one that changes fewer keys. Without a promise, what harms others more than it
    helps comes behind what does not.
    """
    ratio = line.ratio or math.inf
    devices = line.devices if ratio < _LITTLE else math.inf
    about = round(math.log(ratio) / _ABOUT) if math.isfinite(ratio) else math.inf
    harm = round(line.harm / _ABOUT) if line.promised and line.keeps else 0
    trades = not line.promised and line.harm > -math.log(ratio) if math.isfinite(ratio) else False
    return (
        _ORDER.index(line.verdict),
        not line.keeps,
        trades,
        devices,
        harm,
        about,
        QUALITY in line.cost,
        round(math.log(ratio) / _NEARLY) if math.isfinite(ratio) else math.inf,
        len(line.changes),
        ratio,
    )


def _pairs(options: Sequence[Option], lines: Sequence[LeverLine], symptoms: Sequence[Symptom]) -> list[Option]:
    """The best option with that of the next best lever, and with what is best for the next symptom; no more devices."""
    free = [(o, x) for o, x in zip(options, lines, strict=True) if o.devices == 1 and x.verdict != NOT_RUN]
    helping = sorted((p for p in free if p[1].verdict == BETTER), key=lambda p: _rank(p[1]))
    if not helping:
        return []
    first = helping[0][0]

    def go_with(pairs: Sequence[tuple[Option, LeverLine]]) -> list[Option]:
        return [o for o, _ in pairs if o.lever != first.lever and do_not_clash(first, o)][:1]

    others = go_with(helping[1:])
    for symptom in symptoms[1:2]:
        gains = [(_gain(x, symptom), i) for i, (_, x) in enumerate(free)]
        others += go_with([free[i] for gain, i in sorted(gains) if gain < math.log(_LITTLE)])
    return [together(first, other) for other in dict.fromkeys(others)]


def _gain(line: LeverLine, symptom: Symptom) -> float:
    """Mean logarithm of what becomes of the tails that this symptom lengthens; below 0 is better."""
    tails = {f"{name}.p99" for name in symptom.hurts}
    ratios = [e.ratio for e in line.effects if e.metric in tails and e.ratio]
    return math.fsum(map(math.log, ratios)) / len(ratios) if ratios else 0.0


def _slo(one: Tried) -> dict[str, float]:
    assert one.record is not None
    return {name: float(ms) for name, ms in (part.split(":") for part in one.record.slo.split())}


def _mean_kept(tried: Sequence[Tried]) -> float | None:
    shares = [one.record.summary["slo_share"] for one in tried if one.record]
    known = [float(share) for share in shares if share is not None]
    return median(known) if known else None
