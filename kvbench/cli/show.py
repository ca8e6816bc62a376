"""`kvbench list` and `kvbench config`: what there is to choose from."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..core.errors import EXIT_OK
from .options import RunCommand, configuration_options, configured

if TYPE_CHECKING:
    from ..core.config import Config
    from ..core.keys import Key

WIDTH = 100


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON: section -> name -> description.")
def list_command(as_json: bool) -> int:
    """List scenarios, presets, models, devices and policies."""
    from ..bench.scenarios import scenario_descriptions
    from ..costs.devices import DEVICES
    from ..costs.models import MODELS
    from ..routing.settings import POLICIES as ROUTERS
    from ..scheduler.presets import ALIASES, PRESETS, RECORDED
    from ..scheduler.rules import EVICTION, POLICIES
    from ..workload.protocols import PROTOCOLS

    presets = {name: preset.meaning for name, preset in PRESETS.items()}
    presets |= {short: f"short for {full}, the newest known here" for short, full in ALIASES.items()}
    sections = {
        "scenarios": ("kvbench run NAME", scenario_descriptions()),
        "presets": ("--preset", presets),
        "engines recorded": ("kvbench verify golden", {name: ", ".join(found) for name, found in RECORDED.items()}),
        "models": ("--model, or a path to a config.json", {n: m.description for n, m in MODELS.items()}),
        "devices": ("--device", {n: d.description for n, d in DEVICES.items()}),
        "client protocols": ("--client", {name: protocol.meaning for name, protocol in PROTOCOLS.items()}),
        "scheduling policies": ("--set scheduler.policy=", POLICIES),
        "eviction policies": ("--set cache.eviction=", EVICTION),
        "routers": ("--router", ROUTERS),
    }
    if as_json:
        from ..report.run_json import to_text

        click.echo(to_text({name: lines for name, (_, lines) in sections.items()}), nl=False)
        return EXIT_OK
    for name, (use, lines) in sections.items():
        _section(f"{name} ({use})", lines)
    return EXIT_OK


@click.command(cls=RunCommand)
@configuration_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON: key -> value, from, default, unit, meaning.")
def config_command(as_json: bool, **parameters: Any) -> int:
    """Show every key with its value for X.

    With default, unit, meaning, and where a value comes from. Without X: the defaults. Sizes left open
    are shown as the device and the model close them.
    """
    from ..bench.keys import key_tree
    from ..bench.system import build_system
    from ..core.config import toml_text

    config = build_system(configured(parameters).config).config
    if as_json:
        from ..report.run_json import to_text

        click.echo(to_text({key.name: _entry(key, config) for key in key_tree().keys}), nl=False)
        return EXIT_OK
    for key in key_tree().keys:
        value = toml_text(config[key.name])
        line, origin = f"{key.name} = {value}", _origin(config.where[key.name])
        click.echo(line + origin if len(line + origin) <= WIDTH else f"{line}\n{origin}")
        unit = f" {key.unit}" if key.unit else ""
        choices = f"one of {', '.join(toml_text(c) for c in key.choices)}; " if key.choices else ""
        text = f"{key.meaning}; {choices}default {toml_text(key.default)}{unit}"
        click.echo(textwrap.fill(text, WIDTH, initial_indent="    ", subsequent_indent="    "))
    return EXIT_OK


def _entry(key: Key, config: Config) -> dict[str, Any]:
    return {
        "value": config[key.name],
        "from": config.where[key.name],
        "default": key.default,
        "unit": key.unit,
        "meaning": key.meaning,
        **({"choices": key.choices} if key.choices else {}),
    }


def _origin(where: str) -> str:
    return "" if where == "default" else f"    ({where})"


def _section(title: str, lines: Mapping[str, str]) -> None:
    click.echo(title)
    width = max(map(len, lines), default=0)
    for name, text in lines.items():
        indent = " " * (width + 4)
        click.echo(textwrap.fill(f"  {name:<{width}}  {text}", WIDTH, subsequent_indent=indent, break_on_hyphens=False))
    click.echo()
