"""Every command that a page of docs/ shows is understood, and what it says they print they print.

Parsing is checked always, and the page on caches with its picture: outputs of plain Python. The others take half a
minute with a compiled engine: compared under KVBENCH_LONG=1.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.cli import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs").glob("*.md"))
PICTURES = ROOT / "docs" / "pictures"
FAST = "cache"
"""The page whose output and picture plain Python makes in seconds."""
LONG = pytest.mark.skipif(os.environ.get("KVBENCH_LONG") != "1", reason="compiles the engine: KVBENCH_LONG=1")
OUTPUTS = [
    (page, found)
    for page in PAGES
    for found in re.findall(r"<!-- output of: kvbench (.*) -->\n\n((?:    .*\n|\n)+)", page.read_text(encoding="utf-8"))
]

pytestmark = pytest.mark.skipif(not PAGES, reason="needs a checkout")


def shown(page: Path) -> list[str]:
    """Command lines of indented blocks and of comments, without what a shell does with their output."""
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^ {4,}\$ kvbench (.*)$", text, re.M) + re.findall(r"<!-- output of: kvbench (.*) -->", text)
    return [re.sub(r"\s+(#|>|\|).*", "", line) for line in lines]


def context(arguments: list[str]):
    """Parsed as far as the command that would run; it does not."""
    command, parent = app, None
    while True:
        name = arguments[0] if parent is not None else "kvbench"
        made = command.make_context(name, arguments[1:] if parent is not None else arguments, parent=parent)
        if not hasattr(command, "commands"):
            return made
        arguments, parent = [*made._protected_args, *made.args], made
        command = command.commands[arguments[0]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_is_understood(page):
    for line in shown(page):
        assert context(shlex.split(line)).info_name, line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_and_picture_is_there(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_an_unknown_option_is_noticed():
    with pytest.raises(Exception, match="No such option"):
        context(["run", "chat", "--gird", "x=1"])
    assert sum(len(shown(page)) for page in PAGES) > 15


def printed(command: str, *more: str, plain: bool) -> list[str]:
    """Lines of stdout, with an engine as plain Python or compiled."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1" if plain else "0"}
    line = [sys.executable, "-m", "kvbench", *shlex.split(command), *more, "-q"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=600, env=environment, check=True)
    return [text.rstrip() for text in done.stdout.rstrip().splitlines()]


def lines_of(output: str) -> list[str]:
    return re.sub(r"^    ", "", output, flags=re.M).rstrip().splitlines()


@LONG
@pytest.mark.parametrize(("page", "block"), OUTPUTS, ids=[f"{page.stem}{i}" for i, (page, _) in enumerate(OUTPUTS)])
def test_pages_show_what_is_printed(page, block):
    command, output = block
    assert lines_of(output) == printed(command, plain=False)


def test_a_page_and_its_picture_are_what_plain_python_makes(tmp_path):
    [(command, output)] = [block for page, block in OUTPUTS if page.stem == FAST]
    [(drawing, picture)] = [found for found in drawings() if found[0].startswith(command)]
    assert drawing == command
    drawn = tmp_path / "drawn.svg"
    assert lines_of(output) == printed(command, "--plot", str(drawn), plain=True)
    assert drawn.read_bytes() == picture.read_bytes()
    for other in PICTURES.glob("*.svg"):  # colours and type of a year ago would stand beside today's
        assert style(other) == style(drawn), other.name


def style(picture: Path) -> str:
    found = re.search(r"<style>.*?</style>", picture.read_text(encoding="utf-8"), re.S)
    assert found, picture.name
    return found[0]


def drawings() -> list[tuple[str, Path]]:
    """Every picture of a page, or of the README, and the command there that draws it."""
    found = []
    for page in (*PAGES, ROOT / "README.md"):
        for line in re.findall(r"^ {4}\$ kvbench (.*)$", page.read_text(encoding="utf-8"), re.M):
            match = re.fullmatch(r"(.*) --plot (\S+\.svg)", line)
            if match and (PICTURES / match[2]).exists():
                found.append((match[1], PICTURES / match[2]))
    return found


def test_every_picture_has_its_command():
    assert {path.name for _, path in drawings()} == {path.name for path in PICTURES.glob("*.svg")}


@LONG
@pytest.mark.parametrize(("command", "picture"), drawings(), ids=[path.stem for _, path in drawings()])
def test_pictures_are_what_is_drawn_today(command, picture, tmp_path):
    printed(command, "--plot", str(tmp_path / "drawn.svg"), plain=False)
    assert (tmp_path / "drawn.svg").read_bytes() == picture.read_bytes()


def test_the_table_of_arrays_is_that_of_the_docstrings():
    spec = importlib.util.spec_from_file_location("arrays", ROOT / "docs" / "arrays.py")
    arrays = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(arrays)
    assert (ROOT / "docs" / "arrays.md").read_text(encoding="utf-8") == arrays.table(), "run: python docs/arrays.py"
    assert sum(1 for _ in arrays.structs()) > 10


def test_documents_stay_short():
    for name in ("README.md", "README.zh-CN.md"):
        assert len((ROOT / name).read_text(encoding="utf-8").splitlines()) <= 120
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 150
