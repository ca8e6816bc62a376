"""`kvbench experts`: where placing the experts of a mixture anew pays, and where it does not."""

from __future__ import annotations

import click

from ..core.errors import EXIT_OK, UsageError
from .options import devices_completed, keys_completed, models_completed
from .output import quiet_compiler
from .progress import ProgressBar


@click.command()
@click.option("--model", metavar="NAME", default="deepseek-v3", show_default=True, shell_complete=models_completed)
@click.option("--device", metavar="NAME", default="h200", show_default=True, shell_complete=devices_completed)
@click.option("--dtype", metavar="TYPE", default="fp8", show_default=True, help="Of the weights.")
@click.option("--ep", metavar="N", type=click.IntRange(2), default=16, show_default=True, help="Devices, a rank each.")
@click.option("--skew", metavar="S,...", default="0,0.4,0.8,1.2", show_default=True, help="Exponents of zipf.")
@click.option("--tokens", metavar="N,...", default="4,32,128,512", show_default=True, help="Of a device in a step.")
@click.option("--redundant", metavar="N,...", default="0,32", show_default=True, help="Experts beyond one each.")
@click.option("--phase", type=click.Choice(["decode", "prefill"]), default="decode", show_default=True)
@click.option("--context", metavar="N", type=click.IntRange(0), default=1000, show_default=True, help="Tokens before.")
@click.option("--policy", metavar="NAME", default="vllm", show_default=True, help="eplb.policy, or FILE.py:FUNCTION.")
@click.option("--steps", metavar="N", type=click.IntRange(1), default=20, show_default=True, help="Drawn for a point.")
@click.option("--set", "sets", metavar="KEY=VALUE", multiple=True, shell_complete=keys_completed, help="Any other key.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def experts_command(
    model: str,
    device: str,
    dtype: str,
    ep: int,
    skew: str,
    tokens: str,
    redundant: str,
    phase: str,
    context: int,
    policy: str,
    steps: int,
    sets: tuple[str, ...],
    as_json: bool,
    quiet: bool,
) -> int:
    """Where EPLB pays: a table over skew, tokens of a step and redundant experts.

    kvbench experts --model deepseek-v3 --ep 16 --phase decode
    """
    from ..bench.expert_table import Axes, expert_cases
    from ..report.expert_table import expert_document, expert_table
    from ..report.run_json import to_text

    quiet_compiler(quiet)
    axes = Axes(
        [float(value) for value in _numbers("--skew", skew)],
        [int(value) for value in _numbers("--tokens", tokens)],
        [int(value) for value in _numbers("--redundant", redundant)],
        phase == "prefill",
        context if phase == "decode" else 0,
        steps,
    )
    given = {"model": f'"{model}"', "device": f'"{device}"', "dtype": f'"{dtype}"', "dp": ep, "ep": ep}
    changes = [*(("experts", f"{key}={value}") for key, value in given.items()), ("experts", f'eplb.policy="{policy}"')]
    changes.append(("experts", "experts.phases_differ=false"))
    changes += [("set", change) for change in sets]
    with ProgressBar(quiet, "points") as progress:
        cases = expert_cases(changes, axes, progress)
    held = (
        f"{model} ({dtype}) on {ep} x {device}, {phase}"
        + (f" at a context of {context:,} tokens" if phase == "decode" else "")
        + f"; experts placed by {policy} against the map of loading"
    )
    click.echo(to_text(expert_document(cases)).rstrip("\n") if as_json else expert_table(cases, held).rstrip("\n"))
    return EXIT_OK


def _numbers(option: str, text: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text}: write numbers with commas between them") from None
    if any(value < 0 for value in values):
        raise UsageError(f"{option} {text}: numbers of 0 or more")
    return values
