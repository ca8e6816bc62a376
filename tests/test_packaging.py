"""The package list is the folders, and what is built has the scenarios, the types and the command."""

from __future__ import annotations

import ast
import configparser
import email
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from kvbench import __version__

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(not (ROOT / "setup.cfg").exists(), reason="needs a checkout")


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_package_list_is_the_folders():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = setup["options"]["packages"].split()
    folders = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "kvbench").rglob("__init__.py")}
    assert listed == sorted(listed)
    assert set(listed) == folders | {"kvbench.workloads"}
    assert not (ROOT / "kvbench" / "workloads").exists()


def test_nothing_stands_in_both_files():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert set(setup["metadata"]) == {"version"}
    assert set(setup["options"]) == {"packages", "package_dir", "zip_safe", "include_package_data"}
    assert project()["dynamic"] == ["version"]


def test_every_dependency_has_a_reason_beside_it():
    text = (ROOT / "pyproject.toml").read_text()
    extras = project()["optional-dependencies"].values()
    for requirement in (*project()["dependencies"], *(r for extra in extras for r in extra)):
        assert re.search(rf'"{re.escape(requirement)}",\s+# \w', text), requirement


def absolute_imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module))
    return found


def test_no_dependency_is_missing_or_unused():
    files = (ROOT / "kvbench").rglob("*.py")
    imported = {m.split(".")[0] for path in files for m in absolute_imports(path)}
    third_party = imported - set(sys.stdlib_module_names) - {"kvbench"}
    extras = project()["optional-dependencies"]
    needed = ("plot", "kernels", "weights", "tokenizers", "dask", "ray", "silicon")
    wanted = (*project()["dependencies"], *(d for name in needed for d in extras[name]))
    declared = {re.split(r"[><=\[]", d)[0].replace("-", "_") for d in wanted}
    assert third_party - {"llvmlite"} == declared  # llvmlite is part of Numba


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that comes of the source distribution of a copy of the checkout; built without a network."""
    pytest.importorskip("setuptools", "77", reason="building needs setuptools 77 or newer")
    source = tmp_path_factory.mktemp("source")
    target = tmp_path_factory.mktemp("target")
    for name in ("pyproject.toml", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("kvbench", "workloads"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build("sdist", source, target)
    with tarfile.open(next(target.glob("*.tar.gz"))) as archive:
        archive.extractall(target, filter="data")
    build("wheel", next(p for p in target.iterdir() if p.is_dir()), target)
    return zipfile.ZipFile(next(target.glob("*.whl")))


def build(kind: str, source: Path, target: Path) -> None:
    code = f"from setuptools import build_meta; build_meta.build_{kind}({str(target)!r})"
    done = subprocess.run([sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_wheel_holds_every_module_and_scenario(wheel):
    files = set(wheel.namelist())
    modules = {p.relative_to(ROOT).as_posix() for p in (ROOT / "kvbench").rglob("*.py")}
    scenarios = {f"kvbench/{p.relative_to(ROOT).as_posix()}" for p in (ROOT / "workloads").rglob("*.*")}
    tables = {p.relative_to(ROOT).as_posix() for p in (ROOT / "kvbench/costs/measured").rglob("*.*")}
    assert scenarios
    assert tables
    assert modules | scenarios | tables | {"kvbench/py.typed"} == {f for f in files if ".dist-info/" not in f}


def test_the_metadata_of_the_wheel(wheel):
    folder = f"kvbench-{__version__}.dist-info"
    metadata = email.message_from_bytes(wheel.read(f"{folder}/METADATA"))
    assert metadata["Name"] == "kvbench"
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    required = {r for r in metadata.get_all("Requires-Dist", []) if "extra" not in r}
    assert required == set(project()["dependencies"])
    assert b"kvbench = kvbench.cli:main" in wheel.read(f"{folder}/entry_points.txt")
    assert f"{folder}/licenses/LICENSE" in wheel.namelist()
