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


def _show(rows: list[tuple[str, str]], as_json: bool) -> None:
    """Labels and texts; several notes are one list in JSON."""
    from ..report.run_json import to_text
    from ..report.table import labelled

    if not as_json:
        click.echo(labelled(rows))
        return
    notes = [text for label, text in rows if label == "note"]
    click.echo(to_text({**{label: text for label, text in rows if label != "note"}, "notes": notes}), nl=False)


def _of_profile(parameters: dict[str, Any]) -> StepTimes:
    from dataclasses import replace

    from ..costs.devices import find_device
    from ..costs.models import find_model
    from ..costs.profile import find_profile, profile_step_times

    model = find_model(parameters["model"]) if parameters["model"] else None
    device = find_device(parameters["device"]) if parameters["device"] else None
    profile = find_profile(Path(parameters["profile"]), parameters["tp"], model, device)
    profile = replace(profile, dp=parameters["dp"], ep=parameters["ep"])
    return profile_step_times(profile, parameters["tp"])


def _of_silicon(parameters: dict[str, Any]) -> StepTimes:
    from ..costs.silicon import silicon_step_times

    if parameters["model"] is None:
        raise UsageError("device build --silicon needs --model")
    return silicon_step_times(*(parameters[name] for name in ("silicon", "engine", "model", "tp", "dtype")))
