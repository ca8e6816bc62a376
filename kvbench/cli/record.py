"""`kvbench record`: recordings of an engine that is installed."""

from __future__ import annotations

from pathlib import Path

import click

from ..core.errors import EXIT_OK
from .options import force_option


@click.command()
@click.option("--engine", required=True, type=click.Choice(["vllm", "sglang"]), help="Whose code is recorded.")
@click.option("-o", "--output", required=True, metavar="DIR", help="Where the .jsonl files go.")
@force_option
@click.option("--seed", metavar="S", default=0, type=click.IntRange(0), help="Of every script.")
@click.option("--streams", metavar="N", default=4, type=click.IntRange(1, 100), help="Of each component.")
@click.option("--operations", metavar="N", default=400, type=click.IntRange(8), help="Of a stream, roughly.")
@click.option("--rehearse", is_flag=True, help="Record kvbench's own code instead, to try scripts and format.")
@click.option("--json", "as_json", is_flag=True, help="Print the names of the files as JSON.")
def record_command(
    engine: str, output: str, force: bool, seed: int, streams: int, operations: int, rehearse: bool, as_json: bool
) -> int:
    """Record what a real engine's scheduler and cache do, for `kvbench verify golden`.

    The engine's public classes are led through generated operations, with a model that only emits given tokens: its
    KV cache manager and scheduler (vllm 0.19, 0.33); its radix tree, waiting order, admission and scheduler (sglang
    0.5.12, 0.5.23). It has to be importable here; no GPU is used. In an environment of its own:

    \b
      pip install kvbench torch                  torch for the CPU
      pip install --no-deps vllm==0.33.0         or sglang==0.5.23, or unpack its wheel on PYTHONPATH
      pip install transformers pydantic msgspec cbor2 cachetools py-cpuinfo xgrammar llguidance
                                                 for vLLM, and what its imports ask for next
      pip install transformers orjson msgspec    for SGLang, and what its imports ask for next
    Modules that exist only beside a GPU are stood in for.
    """
    from ..report.files import RECORDINGS, check_foreign
    from ..verify.record.recorder import record

    check_foreign(Path(output), force, RECORDINGS)
    written, lost = record(engine, Path(output), seed, streams, operations, rehearse)
    for line in lost:
        click.echo(f"not recorded, the engine gave up: {line}", err=True)
    if as_json:
        from ..report.run_json import to_text

        click.echo(to_text({"folder": output, "streams": [str(name) for name in written]}), nl=False)
        return EXIT_OK
    click.echo(f"recorded {len(written)} streams in {output}; compare them with: kvbench verify golden {output}")
    return EXIT_OK
