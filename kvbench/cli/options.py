"""Options that several commands share: all of them are keys of the configuration by another name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..bench.options import KEY_OF_OPTION, flag
from ..core.errors import UsageError
from ..core.printable import printable

if TYPE_CHECKING:
    from ..bench.configure import Configured
    from ..metrics.slo import Promise

F = TypeVar("F", bound=Callable[..., Any])


def names_from(find: Callable[[], Iterable[str]]) -> Callable[..., list[str]]:
    """For a shell's completion: the names that begin like what is typed."""
    return lambda context, parameter, typed: [name for name in find() if name.startswith(typed)]


def _presets() -> list[str]:
    from ..scheduler.presets import ALIASES, PRESETS

    return [*PRESETS, *ALIASES]


def _models() -> list[str]:
    from ..costs.models import MODELS

    return list(MODELS)


def _devices() -> list[str]:
    from ..costs.devices import DEVICES

    return list(DEVICES)


def _clients() -> list[str]:
    from ..workload.protocols import PROTOCOLS

    return list(PROTOCOLS)


def _scenarios() -> list[str]:
    from ..bench.scenarios import scenario_names

    return scenario_names()


def _keys() -> list[str]:
    from ..bench.keys import key_tree

    return [f"{key.name}=" for key in key_tree().keys]


keys_completed = names_from(_keys)
"""Of an option whose value begins with a key."""

clients_completed = names_from(_clients)
presets_completed = names_from(_presets)
models_completed = names_from(_models)
devices_completed = names_from(_devices)
"""Of the options of these names."""


def configuration_options(command: F) -> F:
    """Target, --trace, --set and the aliases; `configured` reads them."""
    options = (
        click.argument("target", required=False, metavar="[X]", shell_complete=names_from(_scenarios)),
        click.option(
            "--from",
            "from_command",
            metavar="COMMAND",
            help='A server\'s command, or a file with it: "vllm serve MODEL --max-num-seqs 128".',
        ),
        click.option("--trace", metavar="FILE", help="Replay a trace: replaces arrivals, lengths, sharing of X."),
        click.option("--clock", metavar="CLOCK", help="modelled, or measured: a small model really runs here."),
        click.option(
            "--preset", metavar="NAME", shell_complete=names_from(_presets), help="Rules of an engine and version."
        ),
        click.option(
            "--model",
            metavar="NAME",
            shell_complete=names_from(_models),
            help="A known model or a path to its config.json.",
        ),
        click.option("--device", metavar="NAME", shell_complete=names_from(_devices), help="A known device."),
        click.option("--step-times", metavar="FILE", help="Step times from a file: .npz, or .csv of measured steps."),
        click.option("--tp", metavar="N", help="Tensor parallelism."),
        click.option("--replicas", metavar="N", help="Engines of this configuration behind a router."),
        click.option("--router", metavar="NAME", help="How the router chooses an engine (list)."),
        click.option("--dp", metavar="N", help="Data-parallel ranks that step together."),
        click.option("--ep", metavar="N", help="Experts are spread over so many devices."),
        click.option("--dtype", metavar="TYPE", help="Of the weights: bf16, fp16, fp8, int8, fp4."),
        click.option("--num-prompts", metavar="N", help="Requests to run."),
        click.option("--request-rate", metavar="R", help="Requests/s, or inf; a trace is stretched to it."),
        click.option("--speedup", metavar="Nx", help="Replay a trace so many times faster, delays too: 2x."),
        click.option("--arrivals", metavar="KIND", help="Of a trace: recorded, or poisson at the same mean rate."),
        click.option("--burstiness", metavar="B", help="Shape of the gamma gaps; 1 is Poisson."),
        click.option("--max-concurrency", metavar="N", help="Requests in flight at most."),
        click.option(
            "--client", metavar="NAME", shell_complete=clients_completed, help="Client protocol of a tool (list)."
        ),
        click.option("--seed", metavar="N", help="Of everything drawn."),
        click.option(
            "--goodput", metavar="SLO...", multiple=True, help="Promised latency in ms: ttft:200 tpot:50 (or e2el)."
        ),
        click.option("--skip-bad-rows", is_flag=True, help="Leave wrong rows of a trace out, and count them."),
        click.option(
            "--set",
            "sets",
            metavar="KEY=VALUE",
            multiple=True,
            shell_complete=keys_completed,
            help="Any key (kvbench config).",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


force_option = click.option("--force", is_flag=True, help="-o: also a folder that holds other files.")


def give_verbose(group: click.Group) -> None:
    """-v for every command below that has none of its own: `call` shows the trace of a fault where it is given."""
    for command in group.commands.values():
        if isinstance(command, click.Group):
            give_verbose(command)
        elif not any("-v" in parameter.opts for parameter in command.params):
            text = "Show the trace of a fault."
            command.params.append(click.Option(["-v", "--verbose"], is_flag=True, expose_value=False, help=text))


class RunCommand(click.Command):
    """Lets --goodput take several values, as in vLLM: --goodput ttft:200 tpot:50."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        spread: list[str] = []
        listed = False
        for arg in args:
            if listed and _is_slo(arg) and spread[-1] != "--goodput":
                spread.append("--goodput")
            elif spread[-1:] != ["--goodput"]:
                listed = arg == "--goodput"
            spread.append(arg)
        return super().parse_args(ctx, spread)

    def invoke(self, ctx: click.Context) -> Any:
        """What a server's command holds that is no key here is said once."""
        given = ctx.params.get("from_command")
        if given is not None and not ctx.params.get("quiet"):
            from ..bench.server_command import read_command

            for line in read_command(given).left_out:
                click.echo(f"kvbench: warning: {printable(line)}", err=True)
        return super().invoke(ctx)


def _is_slo(text: str) -> bool:
    """NAME:MS, so that a target may follow the list."""
    name, colon, bound = text.partition(":")
    return bool(colon) and name.isalnum() and bound.replace(".", "", 1).isdecimal()


def goodput_changes(given: Sequence[str]) -> list[str]:
    """From "ttft:200 tpot:50" or one bound each to keys. UsageError: not NAME:MS."""
    from ..metrics.keys import SLO_NAMES

    changes = []
    for bound in (part for text in given for part in text.split()):
        name, _, ms = bound.partition(":")
        if name not in SLO_NAMES or not _is_slo(bound):
            raise UsageError(f"--goodput {bound}: write it as ttft:200; names are {', '.join(SLO_NAMES)}, times in ms")
        changes.append(f"slo.{name}={ms}")
    return changes


def promises(given: Sequence[str]) -> list[Promise]:
    """From `ttft.p99:500`, one or several in a text. UsageError: not NAME.pNN:MS."""
    from ..metrics.slo import Promise

    found = []
    for text in (part for one in given for part in one.split()):
        match = re.fullmatch(r"(ttft|tpot|itl|e2el)\.p(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)", text)
        if match is None or not 0 < float(match[2]) < 100 or not float(match[3]):
            raise UsageError(f"--slo {text}: write it as ttft.p99:500; names are ttft, tpot, itl, e2el, times in ms")
        found.append(Promise(match[1], float(match[2]), float(match[3])))
    return found


def _factor(text: str) -> float:
    """2x, 1.5x or 2."""
    try:
        factor = float(text.removesuffix("x"))
    except ValueError:
        factor = 0.0
    if not 0 < factor < 1e9:
        raise UsageError(f"--speedup {text}: write it as 2x")
    return factor


def check_target(parameters: dict[str, Any]) -> None:
    """UsageError: nothing says what to run. A server's command alone runs under the default workload."""
    if all(parameters[name] is None for name in ("target", "trace", "from_command")):
        raise UsageError("nothing to run: name a scenario (kvbench list), a file, or --trace FILE")


def as_typed(parameters: dict[str, Any]) -> list[str]:
    """Target and shared options as they were given, as words of a command line."""
    words = [] if parameters["target"] is None else [parameters["target"]]
    if parameters["from_command"] is not None:
        words += ["--from", parameters["from_command"]]
    named = ("trace", *KEY_OF_OPTION, "speedup")
    for name in named:
        if parameters[name] is not None:
            words += [flag(name), str(parameters[name])]
    if parameters["goodput"]:
        words += ["--goodput", *(part for text in parameters["goodput"] for part in text.split())]
    words += ["--skip-bad-rows"] * parameters["skip_bad_rows"]
    return words + [word for text in parameters["sets"] for word in ("--set", text)]


def configured(parameters: dict[str, Any], more: Sequence[tuple[str, str]] = ()) -> Configured:
    """The configuration of the shared options, and `more` changes on top of it. UsageError as `configure`."""
    from ..bench.configure import configure

    changes: list[tuple[str, str]] = []
    if parameters["from_command"] is not None:
        from ..bench.server_command import read_command

        changes += read_command(parameters["from_command"]).changes
    for parameter, key in KEY_OF_OPTION.items():
        value = parameters[parameter]
        if value is not None:
            changes.append((flag(parameter), f"{key}={value}"))
    changes += [("--goodput", text) for text in goodput_changes(parameters["goodput"])]
    if parameters["speedup"] is not None:
        changes.append(("--speedup", f"trace.time_scale={1 / _factor(parameters['speedup']):.12g}"))
    if parameters["skip_bad_rows"]:
        changes.append(("--skip-bad-rows", "trace.skip_bad_rows=true"))
    changes += [("--set", text) for text in parameters["sets"]]
    return configure(parameters["target"], parameters["trace"], [*changes, *more])
