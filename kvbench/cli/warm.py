"""`kvbench warm`: compile now what a first run would compile."""

from __future__ import annotations

import time

import click

from ..core.errors import EXIT_OK
from .output import say
from .progress import ProgressBar


@click.command()
@click.argument("kind", default="engine", type=click.Choice(["engine", "measured", "all"]))
@click.option("-q", "--quiet", is_flag=True, help="No progress, nothing said.")
def warm_command(kind: str, quiet: bool) -> int:
    """Compile for this machine now, so that no first run has to: in an image, or before a job in CI.

    engine: runs and replays of the vllm and sglang presets, with and without overlap. measured: a model on this
    machine. all: these, forks, checks, faults (fleets, tiers and pairs among them) and kernels. Compiled code is kept
    in NUMBA_CACHE_DIR, else in kvbench/jit in the user's cache folder, for this version and CPU; a second call finds it
    there.
    """
    from ..bench.warm import KINDS, warm
    from ..core.jit import CACHE_DIR, PLAIN

    begin = time.perf_counter()
    if not quiet:
        say(f"compiling what {len(KINDS[kind])} commands call, {len(KINDS[kind]) // 3} minutes or so on two cores")
    with ProgressBar(quiet, "commands") as progress:
        warm(KINDS[kind], progress)
    if not quiet:
        where = "nothing compiles here (NUMBA_DISABLE_JIT)" if PLAIN else f"compiled code is in {CACHE_DIR}"
        click.echo(f"{len(KINDS[kind])} commands in {time.perf_counter() - begin:.0f} s; {where}")
    return EXIT_OK
