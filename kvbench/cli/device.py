"""`kvbench device`: step times of a device, made from a profile or from measured kernels, and shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import EXIT_OK, UsageError

if TYPE_CHECKING:
    from ..costs.step_times import StepTimes


@click.group()
def device_command() -> None:
    """Step times: make a table of them, look at one."""


@device_command.command("build")
@click.option("--profile", metavar="DIR", help="Kernel times of a machine: CSV files in LLMServingSim's layout.")
@click.option("--silicon", metavar="SYSTEM", help="Measured kernels of aiconfigurator-core: h100_sxm, h200_sxm.")
@click.option("--engine", metavar="NAME", default="vllm", show_default=True, help="Of --silicon: vllm or sglang.")
@click.option("--model", metavar="NAME", help="A known model; of --profile: where its name there is not known.")
@click.option("--device", metavar="NAME", help="A known device; of --profile: where its name there is not known.")
@click.option("--dtype", metavar="TYPE", default="bf16", show_default=True, help="Of --silicon: bf16 or fp8.")
@click.option("--tp", metavar="N", type=click.IntRange(1), default=1, show_default=True, help="Tensor parallelism.")
@click.option("--dp", metavar="N", type=click.IntRange(1), default=1, help="Of --profile: replicas in lockstep.")
@click.option("--ep", metavar="N", type=click.IntRange(1), default=1, help="Of --profile: ranks that share experts.")
@click.option(
    "--link-gbs", metavar="GB/S", type=click.FloatRange(0.001, 1e5), help="Of --profile: between its devices."
)
@click.option("-o", "--output", metavar="FILE.npz", required=True, help="Where the table goes.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: what the table is of.")
def build_command(**parameters: Any) -> int:
    """Build a table of step times: `kvbench run --device FILE.npz` and `--step-times FILE.npz` use it."""
    if (parameters["profile"] is None) == (parameters["silicon"] is None):
        raise UsageError("device build needs one of --profile DIR and --silicon SYSTEM")
    output = Path(parameters["output"])
    if output.suffix != ".npz":
        raise UsageError(f"-o {output}: a table of step times ends in .npz")
    from ..bench.device import describe
    from ..costs.step_times import save_step_times

    times = _of_profile(parameters) if parameters["profile"] else _of_silicon(parameters)
    save_step_times(times, output)
    _show([*describe(times), ("written to", str(output))], parameters["as_json"])
    return EXIT_OK


@device_command.command("show")
@click.argument("name", metavar="NAME")
@click.option("--model", metavar="NAME", help="A known model; of a file .npz: its own.")
@click.option("--tp", metavar="N", help="Tensor parallelism.")
@click.option("--dtype", metavar="TYPE", help="Of the weights.")
@click.option("--preset", metavar="NAME", help="Of the engine whose kernels and graphs they are.")
@click.option("--set", "sets", metavar="KEY=VALUE", multiple=True, help="Any key (kvbench config).")
@click.option("--plot", metavar="FILE", help="Draw them beside the roofline: .svg or .png.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def show_command(name: str, sets: tuple[str, ...], plot: str | None, as_json: bool, **parameters: Any) -> int:
    """Show step times: where they are from, what steps take, beside the roofline.

    NAME is a known device, a file of one (.npz, .toml), or a table of measured steps (.csv).
    """
    from ..bench.device import describe, shown_system, step_curves
    from ..bench.step_times import found_times
    from ..report.files import write_whole
    from ..report.plot import check_picture, picture
    from ..report.run_json import to_text
    from ..report.step_times import curves_charts, curves_document, curves_tables
    from ..report.table import labelled

    target = None if plot is None else Path(plot)
    if target is not None:
        check_picture(target)
    given = [(f"--{key}", f"{key}={value}") for key, value in parameters.items() if value is not None]
    system = shown_system(name, [*given, *(("--set", text) for text in sets)])
    rows, curves = describe(found_times(system)), step_curves(system)
    if target is not None:
        write_whole(target, [picture(curves_charts(curves), target.suffix)])
    if as_json:
        click.echo(to_text({**_document(rows), **curves_document(curves)}), nl=False)
    else:
        click.echo(f"{labelled(rows)}\n\n{curves_tables(curves)}")
    return EXIT_OK


def _document(rows: list[tuple[str, str]]) -> dict[str, Any]:
    """Labels and texts; several notes are one list."""
    notes = [text for label, text in rows if label == "note"]
    return {**{label: text for label, text in rows if label != "note"}, "notes": notes}


def _show(rows: list[tuple[str, str]], as_json: bool) -> None:
    """What is known of a table."""
    from ..report.run_json import to_text
    from ..report.table import labelled

    click.echo(to_text(_document(rows)) if as_json else labelled(rows) + "\n", nl=False)


def _of_profile(parameters: dict[str, Any]) -> StepTimes:
    from dataclasses import replace

    from ..costs.named import find_device, find_model
    from ..costs.profile import find_profile, profile_step_times

    model = find_model(parameters["model"]) if parameters["model"] else None
    device = find_device(parameters["device"]) if parameters["device"] else None
    profile = find_profile(Path(parameters["profile"]), parameters["tp"], model, device)
    profile = replace(profile, dp=parameters["dp"], ep=parameters["ep"], link_gbs=parameters["link_gbs"] or 0.0)
    return profile_step_times(profile, parameters["tp"])


def _of_silicon(parameters: dict[str, Any]) -> StepTimes:
    from ..costs.silicon import silicon_step_times

    if parameters["model"] is None:
        raise UsageError("device build --silicon needs --model")
    return silicon_step_times(*(parameters[name] for name in ("silicon", "engine", "model", "tp", "dtype")))
