"""`kvbench verify`: whether kvbench does what it says."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ..core.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, UsageError
from .output import say
from .progress import ProgressBar
from .signals import stopped_by_signals


@click.group(invoke_without_command=True)
@click.pass_context
def verify_command(context: click.Context) -> int:
    """Check kvbench: against real engines, by tokens, by planted faults, by random loads."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return EXIT_OK


@verify_command.command("golden")
@click.argument("folder", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the report.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def golden_command(folder: str, as_json: bool, quiet: bool) -> int:
    """Replay recordings of real engines.

    Every .jsonl or .jsonl.gz file of DIR is led through kvbench's own schedulers, caches and pools, and every
    recorded value is compared. Exit code 1 when a stream differs, or is of an engine, version or component that
    kvbench does not know. Files that are no recordings, such as traces, are named and left out.
    """
    from ..core.compile_watch import compile_watch

    compile_watch.quiet = quiet
    from ..report.golden_table import StreamLine, golden_report
    from ..verify.golden import verify_files
    from ..verify.recording import find_recordings

    paths, others = find_recordings(Path(folder))
    with ProgressBar(quiet, "streams") as progress:
        verdicts = verify_files(paths, progress)
    lines = [
        StreamLine(
            name=v.name,
            engine=v.engine,
            steps=v.steps,
            agreed=v.agreed,
            where=v.where,
            differences=[(d.field, d.recorded, d.kvbench) for d in v.differences],
            unknown=v.unknown,
        )
        for v in verdicts
    ]
    left_out = [str(path.relative_to(folder)) for path in others]
    passed = all(v.passed for v in verdicts)
    return _tell(golden_report(lines, left_out), passed, as_json, streams=lines, no_recordings=left_out)


@verify_command.command("fuzz")
@click.option("--operations", metavar="N", default=100_000, type=click.IntRange(1), help="Over all combinations.")
@click.option("--seed", metavar="S", default=0, type=click.IntRange(0), help="Of everything drawn.")
@click.option("--combination", metavar="NAME", default="", help="Those whose name begins like this.")
@click.option("--tiers", is_flag=True, help="Engines with host memory and storage behind their cache.")
@click.option("--fleet", is_flag=True, help="Several engines behind routers, some of which restart.")
@click.option("--pd", is_flag=True, help="Prefill and decode engines, with faults between them; states are counted.")
@click.option("--round", "number", metavar="R", type=click.IntRange(0), help="This round of one combination again.")
@click.option("--requests", metavar="I,J", help="Of that round only these requests.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the report.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def fuzz_command(
    operations: int,
    seed: int,
    combination: str,
    tiers: bool,
    fleet: bool,
    pd: bool,
    number: int | None,
    requests: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Drive small engines of every combination with random load, and check them after every step.

    Every scheduler, cache, block size and path, its own or not, with cancels, preemptions, evictions, sessions,
    samples and priorities. An operation is an engine step, the arrival of a sequence or a cancel. In the end all
    memory has to be free or cached, and counters the sums of their rows. Exit code 1 when something is wrong; the
    report gives the smallest command found that shows it.
    """
    from ..core.compile_watch import compile_watch

    compile_watch.quiet = quiet
    from ..report.fuzz_table import FuzzFailure, FuzzLine, fuzz_report
    from ..verify.fuzz import find_combinations, fuzz, repeat
    from ..verify.fuzz_systems import FLEET, PD, TIERS

    kinds = [path for path, asked in ((TIERS, tiers), (FLEET, fleet), (PD, pd)) if asked]
    if len(kinds) > 1:
        raise UsageError(f"--{kinds[0]} and --{kinds[1]} are two kinds of engines; give one of them")
    chosen = find_combinations(combination, kinds[0] if kinds else "")
    if requests is not None and number is None:
        raise UsageError("--requests are those of one round; give --round too")
    if number is None:
        with ProgressBar(quiet, "operations") as progress, stopped_by_signals():
            tallies = fuzz(operations, seed, chosen, progress)
    elif len(chosen) > 1:
        raise UsageError("--round is a round of one combination; give its whole name with --combination")
    else:
        tallies = [repeat(seed, chosen[0], number, _numbers(requests))]
    lines = [
        FuzzLine(
            combination=t.combination,
            operations=t.operations,
            steps=t.steps,
            preemptions=t.preemptions,
            evictions=t.evictions,
            cancels=t.cancels,
            ended_early=t.ended_early,
            unvisited=t.unvisited if t.visited is not None else None,
            failures=[FuzzFailure(f.round, f.step, f.what, f.command) for f in t.failures],
        )
        for t in tallies
    ]
    passed = not any(t.failures for t in tallies)
    code = _tell(fuzz_report(lines, seed), passed, as_json, seed=seed, combinations=lines)
    if any(t.interrupted for t in tallies):
        failed = sum(len(t.failures) for t in tallies)
        say(f"interrupted: {sum(t.operations for t in tallies):,} of {operations:,} operations, {failed} failures")
        code = code or EXIT_INTERRUPTED
    return code


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"--requests {text}: write numbers with commas between them, for example 0,4,7")
    return [int(part) for part in parts]


@verify_command.command("faults")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the report.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def faults_command(as_json: bool, quiet: bool) -> int:
    """Run scenarios of faults that people reported, on a right engine and on a broken one.

    Every run gets every check: the partition of blocks after each step, a shadow of what lies in every block, the sums
    of counters and rows. The right engine has to pass, the broken one to be caught; what was reported as a figure is
    measured. Exit code 1 when one of them does not behave.
    """
    from ..core.compile_watch import compile_watch

    compile_watch.quiet = quiet
    from ..report.faults_table import FaultLine, FigureLine, faults_report
    from ..verify.faults import verify_faults

    with ProgressBar(quiet, "scenarios") as progress:
        verdicts, figures = verify_faults(progress)
    lines = [FaultLine(v.fault.name, v.fault.source, v.fault.broken, v.right, v.broken, v.passed) for v in verdicts]
    measured = [
        FigureLine(
            name=f.effect.name,
            source=f.effect.source,
            settings=f"first {f.effect.first}, second {f.effect.second}",
            figure=f.name,
            first=f.first,
            second=f.second,
            direction=f.direction,
            passed=f.passed,
        )
        for f in figures
    ]
    passed = [v.passed for v in verdicts] + [f.passed for f in figures]
    return _tell(faults_report(lines, measured), all(passed), as_json, faults=lines, figures=measured)


@verify_command.command("tokens")
@click.option("--all", "everything", is_flag=True, help="The whole product of variations (300 a KV type).")
@click.option("--kv-dtype", "kv_dtypes", metavar="TYPE", multiple=True, help="float32, bf16, int8, int4; default: all.")
@click.option("--model", metavar="NAME", default="nano", help="nano, tiny, small, or a Hugging Face folder.")
@click.option("--numerics", type=click.Choice(["exact", "fast"]), default="exact", help="fast counts, does not fail.")
@click.option("--only", metavar="TEXT", default="", help="Variations whose name holds this.")
@click.option("--plant", metavar="FAULT", default="", help="Plant a fault that has to be noticed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the report.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def tokens_command(
    everything: bool,
    kv_dtypes: tuple[str, ...],
    model: str,
    numerics: str,
    only: str,
    plant: str,
    as_json: bool,
    quiet: bool,
) -> int:
    """Run one workload under many caches and schedules on a real model: the same tokens everywhere.

    Presets, caches, block sizes, memory so small that sequences are preempted, chunks, overlap, forks that share
    blocks, copies to host memory and to files, and back. The sampled tokens of every sequence are compared with those
    of a plain run. Exit code 1 when one differs (exact numerics).
    """
    from ..core.compile_watch import compile_watch

    compile_watch.quiet = quiet
    from ..report.tokens_table import tokens_report
    from ..verify.tokens import KV_DTYPES, PLANTS, prove
    from ..verify.variations import variations

    if plant and plant not in PLANTS:
        raise UsageError(f"--plant {plant}: no such fault; there are {', '.join(PLANTS)}")
    if wrong := [kind for kind in kv_dtypes if kind not in KV_DTYPES]:
        raise UsageError(f"--kv-dtype {wrong[0]}: choose {', '.join(KV_DTYPES)}")
    chosen = [v for v in variations(everything) if only in v.name]
    if not chosen:
        raise UsageError(f"--only {only}: no variation's name holds that; without it all are run")
    with ProgressBar(quiet, "runs") as progress:
        outcomes, diverged = prove(kv_dtypes or KV_DTYPES, chosen, model, numerics, plant, progress)
    failed = any(o.error or (numerics == "exact" and not o.passed) for o in outcomes)
    report = tokens_report(outcomes, diverged, numerics)
    return _tell(report, not failed, as_json, numerics=numerics, diverged=diverged, runs=outcomes)


def _tell(report: str, passed: bool, as_json: bool, **document: Any) -> int:
    """The report, or its lines (dataclasses) as JSON; and the exit code."""
    from ..report.run_json import to_text

    if as_json:
        plain = {
            name: [v if isinstance(v, str) else asdict(v) for v in value] if isinstance(value, list) else value
            for name, value in document.items()
        }
        report = to_text({"passed": passed, **plain})
    click.echo(report, nl=False)
    return EXIT_OK if passed else EXIT_FAILED
