"""README.zh-CN.md says what README.md says: section by section the same commands, output, names and links."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = {name: ROOT / name for name in ("README.md", "README.zh-CN.md")}

pytestmark = pytest.mark.skipif(not FILES["README.md"].exists(), reason="needs a checkout")


def sections(name: str) -> list[str]:
    """What is above the first heading of the second level, then one text for each."""
    return re.split(r"^## ", FILES[name].read_text(encoding="utf-8"), flags=re.M)


def blocks(text: str) -> list[str]:
    """Lines of indented blocks, comments of commands left out: those are translated."""
    lines = re.findall(r"^    (.*)$", text, re.M)
    return [re.sub(r"\s+# .*", "", line).rstrip() for line in lines if line.strip()]


def names(text: str) -> set[str]:
    """Everything in backticks, links and markers, outside of blocks. The two files link each other."""
    running = re.sub(r"^    .*$", "", text, flags=re.M)
    links = set(re.findall(r"\]\(([^)]*)\)", running)) - set(FILES)
    return {*re.findall(r"`([^`]+)`", running), *links, *re.findall(r"<!-- .* -->", running)}


def test_the_sections_are_the_same_in_number():
    english, chinese = (sections(name) for name in FILES)
    assert len(english) == len(chinese), "README.md and README.zh-CN.md: a section is missing in one of them"


@pytest.mark.parametrize("what", [blocks, names])
def test_every_section_has_the_same_commands_and_names(what):
    english, chinese = (sections(name) for name in FILES)
    for ours, theirs in zip(english, chinese, strict=True):
        title = ours.partition("\n")[0]
        assert what(theirs) == what(ours), f"README.zh-CN.md differs from README.md in section {title!r}"


def test_every_section_is_translated():
    for text in sections("README.zh-CN.md"):
        assert re.search(r"[\u4e00-\u9fff]{4}", text)


def test_rows_and_points_are_as_many():
    english, chinese = (sections(name) for name in FILES)
    for form in (r"^\|", r"^- ", r"\*\*"):
        assert [len(re.findall(form, s, re.M)) for s in english] == [len(re.findall(form, s, re.M)) for s in chinese]
