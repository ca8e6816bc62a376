"""`kvbench calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..core.errors import EXIT_OK, UsageError
from .options import devices_completed, keys_completed, models_completed, presets_completed
from .output import quiet_compiler, say

if TYPE_CHECKING:
    from ..bench.system import System

SERVER = ("preset", "model", "device", "tp", "dtype")
"""Options that are keys and say what the server is."""


@click.command()
@click.argument("results", nargs=-1, metavar="RESULT...")
@click.option("-o", "--output", metavar="FILE", help="Write the device file: my-device.toml.")
@click.option("--preset", metavar="NAME", shell_complete=presets_completed, help="Engine and version of the server.")
@click.option("--model", metavar="NAME", shell_complete=models_completed, help="What it served.")
@click.option("--device", metavar="NAME", shell_complete=devices_completed, help="Its device: what is corrected.")
@click.option("--tp", metavar="N", help="Tensor parallelism.")
@click.option("--dtype", metavar="TYPE", help="Of the weights.")
@click.option("--set", "sets", metavar="KEY=VALUE", multiple=True, shell_complete=keys_completed, help="Any key.")
@click.option(
    "--holdout", metavar="SHARE", type=click.FloatRange(0, 0.9), default=0.0, help="Share of them, not fitted."
)
@click.option("--scattered", is_flag=True, help="Of --holdout: every few of all requests. [the last ones]")
@click.option("--force", is_flag=True, help="-o: also a fit whose median error is above 50 %.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of the table.")
@click.option("-q", "--quiet", is_flag=True, help="No word on stderr.")
def calibrate_command(
    results: tuple[str, ...],
    output: str | None,
    sets: tuple[str, ...],
    holdout: float,
    scattered: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
    **server: str | None,
) -> int:
    """Fit step times to what your own server did, for `kvbench run --device my-device.toml`.

    RESULT is the JSON of `vllm bench serve --save-detailed`, the lines of `sglang.bench_serving --output-details`,
    AIPerf's profile_export.jsonl, a LiteLLM log, a requests.csv, or a folder with vllm/requests.jsonl. Say what the
    server was as for `kvbench run`: sizes that it was started with (KV blocks, batched tokens) matter.
    """
    from ..report.calibration import calibration_document, calibration_table, device_file
    from ..report.files import check_file, write_whole
    from ..report.run_json import to_text

    if scattered and not holdout:
        raise UsageError("--scattered says which requests --holdout leaves out: give --holdout 0.5 with it")
    if not results:
        raise UsageError("nothing to fit to: give a result of vllm bench serve, sglang.bench_serving, AIPerf, LiteLLM")
    if output is not None:
        check_file("-o", Path(output))
    quiet_compiler(quiet)
    from ..fidelity.calibrate import calibrate
    from ..fidelity.results import read_served

    served = [run for path in results for run in read_served(Path(path))]
    found = calibrate(_system(results, server, sets), served, holdout, scattered)
    click.echo(to_text(calibration_document(found)) if as_json else calibration_table(found) + "\n", nl=False)
    if output is not None and found.doubt and not force:
        raise UsageError(f"{output} is not written: {found.doubt}; --force writes it")
    if output is not None:
        write_whole(Path(output), [device_file(found)])
    if not quiet:
        wrote = f"wrote {output}; use it with --device {output}"
        say(wrote if output is not None else "no file was written: -o my-device.toml makes one for --device")
    return EXIT_OK


def _system(results: tuple[str, ...], server: dict[str, str | None], sets: tuple[str, ...]) -> System:
    """What the options say, above what a folder of a run says of its own server."""
    from ..bench.configure import configure
    from ..bench.system import build_system
    from ..fidelity.predict import run_changes
    from ..fidelity.server_runs import is_server_run, read_server_run

    folders = [Path(path) for path in results if is_server_run(Path(path))]
    changes = list(run_changes(read_server_run(folders[0]))) if folders else []
    changes += [(f"--{name}", f"{name}={server[name]}") for name in SERVER if server[name] is not None]
    changes += [("--set", text) for text in sets]
    return build_system(configure(None, changes=changes).config)
