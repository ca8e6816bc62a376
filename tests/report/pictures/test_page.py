"""The report in a real browser: it opens from disk, asks nobody for anything, and complains about nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from kvbench.cli import call

from .made import write_curve, write_rates, write_run

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage",
    "--enable-logging=stderr", "--virtual-time-budget=1000", "--hide-scrollbars",
)  # fmt: skip

needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="needs a chromium: apt-get install chromium")

PROBE = """<script>addEventListener('load', () => {
  const widest = Math.max(...[...document.querySelectorAll('figure, h1, p')].map(e => e.getBoundingClientRect().right));
  const shown = [...document.querySelectorAll('svg')].filter(e => e.getBoundingClientRect().width > 0);
  const asked = performance.getEntriesByType('resource').length;
  const found = [document.documentElement.scrollWidth, innerWidth, Math.round(widest), shown.length, asked];
  document.title = found.join(' ');
})</script>"""
"""Only the tests' copy of the page has a script."""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    root = tmp_path_factory.mktemp("report")
    write_run(root / "base", 120, run="<chat> & more", notes=("a <note> & more",))
    write_run(root / "slow", 120, slow=3, run="chat", clock="measured")
    write_rates(root / "rates")
    write_curve(root / "curve")
    parts = [str(root / name) for name in ("base", "slow", "rates", "curve")]
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


def test_the_same_runs_are_the_same_page(page, tmp_path):
    again = tmp_path / "again.html"
    parts = [str(page.parent / name) for name in ("base", "slow", "rates", "curve")]
    assert (
        call(["report", *parts, "-o", str(again), "-q", "--title", re.search("<h1>(.*?)</h1>", page.read_text())[1]])
        == 0
    )
    assert again.read_bytes() == page.read_bytes()


@needs_chromium
@pytest.mark.parametrize("width", [500, 1280])
def test_a_browser_shows_every_chart_and_complains_about_nothing(page, tmp_path, width):
    probed = tmp_path / "probed.html"
    probed.write_text(page.read_text().replace("</head>", f"{PROBE}</head>"))
    dom, errors = browse(f"--window-size={width},900", "--dump-dom", probed.as_uri())
    assert not [line for line in errors.splitlines() if "CONSOLE" in line]
    for kind in ("ratios", "cdf", "spectrum", "curve", "misses", "timeline", "occupancy", "hits", "batch"):
        assert f'<section id="{kind}">' in dom
    assert dom.count("<figure") >= 14
    assert dom.count("<figure") == dom.count("<details>")
    assert dom.count('role="img"') == dom.count("<desc") == dom.count("<svg")
    assert "MODELLED AND MEASURED" in dom
    for fact in ("clock", "cache state", "preset", "device", "fingerprint", "seed", "(baseline)"):
        assert fact in dom
    scroll, inner, widest, shown, asked = map(int, re.search("<title>([0-9 ]+)</title>", dom)[1].split())
    assert scroll <= inner
    assert widest <= inner
    assert shown == dom.count("<figure")
    assert asked == 0


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
