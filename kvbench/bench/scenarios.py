"""Built-in scenarios: TOML files that are shipped with the package, or lie beside it in a checkout."""

from __future__ import annotations

from pathlib import Path

from ..core.config import nearest, read_text
from ..core.errors import UsageError

PACKAGE = Path(__file__).resolve().parent.parent


def scenario_folder() -> Path:
    """`kvbench/workloads` of an installed package, else `workloads` of the checkout.

    The installed folder is found as a path and never imported: an editable install has no such package.
    """
    installed = PACKAGE / "workloads"
    return installed if installed.is_dir() else PACKAGE.parent / "workloads"


def scenario_names() -> list[str]:
    """Names of the built-in scenarios, sorted: paths below the folder without the suffix."""
    folder = scenario_folder()
    return sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.toml"))


def scenario_descriptions() -> dict[str, str]:
    """Name -> the first line of its file, which is a comment that says what it is for."""
    folder = scenario_folder()
    heads = {name: read_text(folder / f"{name}.toml").partition("\n")[0] for name in scenario_names()}
    return {name: head.lstrip("# ") if head.startswith("#") else "" for name, head in heads.items()}


def scenario_path(name: str) -> Path:
    """The file of a scenario; UsageError names the nearest."""
    names = scenario_names()
    if name in names:
        return scenario_folder() / f"{name}.toml"
    if not names:
        raise UsageError(f"no scenarios in {scenario_folder()}; the installation is incomplete")
    raise UsageError(
        f"unknown scenario {name}; the nearest is {nearest(name, names)} (a path has a / or ends in .toml or .json)"
    )
