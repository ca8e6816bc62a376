"""The report in a real browser: it opens from disk, asks nobody for anything, and complains about nothing."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kvbench.cli import call
from kvbench.report.pictures.gather import KINDS

from .made import write_advice, write_curve, write_fidelity, write_rates, write_run

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage",
    "--enable-logging=stderr", "--virtual-time-budget=1000", "--hide-scrollbars",
)  # fmt: skip

needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="needs a chromium: apt-get install chromium")

PROBE = f"<script>{(Path(__file__).parent / 'layout.js').read_text()}</script>"
"""Only the tests' copy of the page has a script."""

WIDE, PHONE = 1440, 390


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    write_run(root / "base", 120, run="<chat> & more", notes=("a <note> & more",))
    write_run(root / "slow", 120, slow=3, run="chat", clock="measured")
    write_rates(root / "rates")
    write_curve(root / "curve")
    write_fidelity(root / "fidelity")
    write_advice(root / "advice")
    parts = [str(root / name) for name in ("base", "slow", "rates", "curve", "fidelity", "advice")]
    assert call(["report", *parts, "-o", str(root / "report.html"), "-q"]) == 0
    return root / "report.html"


def browse(*arguments: str) -> tuple[str, str]:
    done = subprocess.run([CHROMIUM, *FLAGS, *arguments], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


def test_one_file_without_a_request_and_without_a_script(page):
    text = page.read_text()
    found = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.append((tag, dict(attrs)))

    Reader().feed(text)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in found}
    assert not any("src" in attrs or "href" in attrs for _, attrs in found)
    assert "url(" not in text
    assert "@import" not in text
    ids = [attrs["id"] for _, attrs in found if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in found:
        if tag == "svg":
            assert set(attrs["aria-labelledby"].split()) <= set(ids)
    assert "&lt;chat&gt; &amp; more" in text
    assert "a &lt;note&gt; &amp; more" in text
    assert "<chat>" not in text


def test_a_note_stands_once_with_the_runs_that_it_is_said_of(tmp_path):
    for number in range(5):
        notes = ("of all", *("of two",) * (number < 2), *("of four",) * (number > 0))
        write_run(tmp_path / "runs" / str(number), 120, run=f"run{number}", seed=number, notes=notes)
    assert call(["report", str(tmp_path / "runs"), "-o", str(tmp_path / "report.html"), "-q"]) == 0
    said = re.findall("<li>(.*?)</li>", (tmp_path / "report.html").read_text())
    assert [re.sub(".*: ", "", note) for note in said] == ["of all", "of two", "of four"]
    assert ":" not in said[0]
    assert said[1].count(";") == 1
    assert "and 2 more" in said[2]


def test_the_same_runs_are_the_same_page(page, tmp_path):
    again = tmp_path / "again.html"
    parts = [str(page.parent / name) for name in ("base", "slow", "rates", "curve", "fidelity", "advice")]
    assert (
        call(["report", *parts, "-o", str(again), "-q", "--title", re.search("<h1>(.*?)</h1>", page.read_text())[1]])
        == 0
    )
    assert again.read_bytes() == page.read_bytes()


def looked_at(page: Path, folder: Path, width: int, scheme: int = 1) -> dict:
    """What layout.js finds in a frame of this width (a window cannot be as narrow as a phone). scheme: 0 is dark."""
    probed, frame = folder / "probed.html", folder / "frame.html"
    probed.write_text(page.read_text().replace("</head>", f"{PROBE}</head>"))
    frame.write_text(
        "<script>addEventListener('message', e => document.title = btoa(unescape(encodeURIComponent(e.data))))</script>"
        f'<iframe src="{probed.as_uri()}" style="width:{width}px;height:900px;border:0"></iframe>'
    )
    schemes = f"--blink-settings=preferredColorScheme={scheme}"
    dom, errors = browse(schemes, f"--window-size={max(width, 500)},900", "--dump-dom", frame.as_uri())
    assert not [line for line in errors.splitlines() if "CONSOLE" in line]
    found = json.loads(base64.b64decode(re.search("<title>(.+?)</title>", dom)[1]))
    assert found["width"] == width
    return found


@needs_chromium
@pytest.mark.parametrize("width", [PHONE, WIDE])
@pytest.mark.parametrize("scheme", [0, 1])
def test_no_label_is_cut_lies_on_another_or_fades(page, tmp_path, width, scheme):
    found = looked_at(page, tmp_path, width, scheme)
    assert found["faults"] == []
    assert found["scroll"] <= width
    assert found["svgs"] == page.read_text().count("<figure") >= 20
    assert found["asked"] == 0


@needs_chromium
def test_charts_use_a_wide_page_and_stack_on_a_phone(page, tmp_path):
    wide, phone = (looked_at(page, tmp_path, width) for width in (WIDE, PHONE))
    for beside, charts, taken in wide["rows"]:
        assert beside >= min(charts, 2)
        assert taken > 0.9 * WIDE
    assert max(beside for beside, _, _ in wide["rows"]) == 3
    assert {beside for beside, _, _ in phone["rows"]} == {1}
    assert phone["scrolled"] > 0
    assert "scrolls sideways" in page.read_text()


@needs_chromium
@pytest.mark.parametrize(
    "spoil", [("svg text { font: 12px", "svg text { font: 30px"), ("--ink:#1D1D1B", "--ink:#BBBBBB")]
)
def test_a_spoilt_page_is_noticed(page, tmp_path, spoil):
    text = page.read_text()
    assert spoil[0] in text
    (tmp_path / "spoilt.html").write_text(text.replace(*spoil))
    assert len(looked_at(tmp_path / "spoilt.html", tmp_path, WIDE)["faults"]) > 3


def test_a_page_has_every_chart_once_for_each_width(page):
    text = page.read_text()
    for kind in set(KINDS) - {"experts", "devices", "engines", "fleet", "tiers"}:  # only of runs with several
        assert f'<figure id="{kind}' in text
    assert text.count("<figure") == text.count("<details>")
    assert 2 * text.count("<figure") == text.count("<svg") == text.count('role="img"') == text.count("<desc")
    assert "MODELLED AND MEASURED" in text
    for fact in ("clock", "cache state", "preset", "device", "fingerprint", "seed", "(baseline)"):
        assert fact in text


@needs_chromium
def test_dark_is_dark_and_light_is_light(page, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    shades = {}
    for scheme in (0, 1):
        shot = tmp_path / f"{scheme}.png"
        browse(
            f"--blink-settings=preferredColorScheme={scheme}",
            "--window-size=600,800",
            f"--screenshot={shot}",
            page.as_uri(),
        )
        pixels = image.imread(shot)[..., :3]
        shades[scheme] = float(pixels.mean())
        assert len({tuple(p) for p in pixels[::7, ::7].reshape(-1, 3).tolist()}) > 5
    assert shades[0] < 0.3
    assert shades[1] > 0.8


def test_advice_stands_on_the_page_with_its_evidence_and_every_lever(page):
    text = page.read_text()
    assert "Advice on chat" in text
    assert "<li>55 % &lt;b&gt;</li>" in text
    assert "smaller &lt;chunks&gt;" in text
    assert "-37.5 % (-43.2 .. -30.6)" in text
    assert "TTFT p99 of chat: what each change makes of it" in text
    assert "The line is the promise, 300 ms. Best: scheduler.max_num_batched_tokens=2048." in text
