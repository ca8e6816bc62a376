"""A fleet from the command line: options, groups, what is printed and written, and one line for what is wrong."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from kvbench.bench.configure import configure
from kvbench.bench.fleet import devices_of
from kvbench.bench.system import build_system
from kvbench.cli import call
from kvbench.report.pictures.fleet import crossing
from kvbench.report.pictures.folders import read_sources

SMALL = ("run", "chat", "--num-prompts", "30", "--request-rate", "20", "-q")


def run(tmp_path: Path, *options: str) -> Path:
    assert call([*SMALL, *options, "-o", str(tmp_path / "out")]) == 0
    return tmp_path / "out"


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_replicas_and_a_router(tmp_path, capsys):
    folder = run(tmp_path, "--replicas", "3", "--router", "least-loaded", "--set", "router.decide_us=50")
    out = capsys.readouterr().out
    assert all(len(line) <= 100 for line in out.splitlines())
    assert "router       least-loaded; a decision takes 0.050 ms" in out
    engines = rows(folder / "engines.csv")
    requests = rows(folder / "requests.csv")
    assert [row["engine"] for row in engines] == ["0", "1", "2"]
    for row in engines:
        own = [r for r in requests if r["engine"] == row["engine"]]
        assert len(own) == int(row["requests"]) > 0
        assert sum(int(r["output_tokens"]) for r in own) == int(row["output_tokens"])
        assert sum(int(r["cached_tokens"]) for r in own) == int(row["cached_tokens"])
    assert {r["route_ms"] for r in requests} == {"0.050000"} == {r["time_route_ms"] for r in requests}
    document = json.loads((folder / "run.json").read_text())
    assert document["fleet"]["router"] == "least-loaded"
    assert len(document["fleet"]["engines"]) == 3


@pytest.mark.parametrize(
    "options",
    [
        ["--replicas", "2", "--router", "power-of-two"],
        ["--set", "fleet.group=[{}, {device='a100'}]"],
        ["--router", "least-loaded"],
    ],
)
def test_it_runs_again_to_the_byte(tmp_path, options):
    folder = run(tmp_path, *options)
    before = {name: (folder / name).read_bytes() for name in ("requests.csv", "summary.csv", "engines.csv")}
    assert call(["run", str(folder / "run.json"), "-q", "-o", str(tmp_path / "again")]) == 0
    assert before == {name: (tmp_path / "again" / name).read_bytes() for name in before}


def test_one_engine_leaves_no_table_of_engines(tmp_path):
    folder = run(tmp_path, "--replicas", "2")
    assert (folder / "engines.csv").exists()
    run(tmp_path)
    assert not (folder / "engines.csv").exists()
    assert "engine" not in (folder / "requests.csv").read_text().splitlines()[0].split(",")


def test_groups_are_engines_of_their_own(tmp_path):
    path = tmp_path / "two-kinds.toml"
    path.write_text(
        """
        [[fleet.group]]
        name = "large"
        replicas = 2

        [[fleet.group]]
        device = "a100"
        cache.blocks = 700
        """
    )
    assert call(["run", str(path), "--num-prompts", "20", "-q", "-o", str(tmp_path / "out")]) == 0
    engines = rows(tmp_path / "out" / "engines.csv")
    assert [row["group"] for row in engines] == ["large", "large", "device=a100, cache.blocks=700"]
    assert engines[2]["blocks"] == "700" != engines[0]["blocks"]
    busy = [float(row["busy_share"]) / int(row["steps"]) for row in engines]
    assert busy[2] > busy[0]  # a slower device


def test_many_engines_are_three_rows(capsys):
    assert call([*SMALL, "--replicas", "12"]) == 0
    out = capsys.readouterr().out
    assert "of 12 engines" in out
    assert "median" in out
    assert all(len(line) <= 100 for line in out.splitlines())


@pytest.mark.parametrize(
    ("changes", "devices"),
    [
        ([], 1),
        (["tp=4"], 4),
        (["tp=2", "fleet.replicas=3"], 6),
        (["fleet.group=[{replicas=2}, {tp=4}]"], 6),
        (["pd.prefill=1", "pd.decode=2", "pd.decode.tp=2"], 5),
    ],
)
def test_devices_of_a_design(changes, devices):
    configured = configure("chat", changes=[("--set", change) for change in changes])
    assert devices_of(build_system(configured.config).config) == devices


@pytest.mark.parametrize("replicas", [3, 9])
def test_steps_timeline_and_picture_tell_engines_apart(tmp_path, replicas):
    options = ("--replicas", str(replicas), "--steps", "--timeline", str(tmp_path / "trace.json"))
    folder = run(tmp_path, *options)
    steps, engines = rows(folder / "steps.csv"), rows(folder / "engines.csv")
    for row in engines:
        own = [s for s in steps if s["engine"] == row["engine"]]
        assert len(own) == int(row["steps"])
        starts = [float(s["start_ms"]) for s in own]
        assert starts == sorted(starts)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sum(name.startswith("engine ") for name in names.values()) == replicas
    spans = [e for e in events if e.get("cat") == "step"]
    assert {names[e["pid"]] for e in spans} == {f"engine {row['engine']}" for row in engines if row["steps"] != "0"}
    assert call(["plot", str(folder), "--what", "engines", "-o", str(tmp_path / "e.svg")]) == 0
    assert ("median of 9" if replicas > 7 else "engine 2") in (tmp_path / "e.svg").read_text()


def test_regret_is_against_the_oracle_on_the_same_requests(capsys):
    assert call([*SMALL, "--replicas", "3", "--router", "random", "--regret", "--json"]) == 0
    rows = {row["figure"]: row for row in json.loads(capsys.readouterr().out)["regret"]}
    assert call([*SMALL, "--replicas", "3", "--router", "oracle", "--json"]) == 0
    oracle = json.loads(capsys.readouterr().out)
    assert rows["ttft.p99"]["oracle"] == oracle["p99_ttft_ms"]
    assert rows["hit_rate"]["oracle"] == oracle["hit_rate"] > rows["hit_rate"]["own"]
    assert call([*SMALL, "--replicas", "3", "--router", "least-loaded", "--set", "router.load_by=kv", "--regret"]) == 0
    assert "difference" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--replicas", "0"], "fleet.replicas"),
        (["--regret"], "--regret compares a router with the oracle"),
        (["--router", "cleverest"], "router.policy"),
        (["--replicas", "2", "--clock", "measured"], "a fleet runs on the modelled clock"),
        (["--replicas", "2", "--cache-state", "warm"], "cache.state of a fleet is cold"),
        (["--set", "router.load=reported"], "router.load has no effect on one engine"),
        (["--replicas", "2", "--set", "router.load=reported"], "router.load has no effect under router.policy"),
        (["--set", "fleet.group=[{replicas=0}]"], "[[fleet.group]] 1: replicas is a number of engines"),
        (["--set", "fleet.group=[{arrivals={rate=3}}]"], "arrivals.rate is one for the whole fleet"),
        (["--set", "fleet.group=[{cache={block=3}}]"], "cache.block"),
        (["--set", "fleet.group=[{}]", "--replicas", "2"], "stands beside [[fleet.group]]"),
    ],
)
def test_what_is_wrong_is_one_line(options, said, capsys):
    assert call([*SMALL, *options]) == 2
    err = capsys.readouterr().err.strip()
    assert said in err, err
    assert len(err.splitlines()) == 1


def test_against_the_belief_for_balance(tmp_path, capsys):
    """Cache-aware with no patience for uneven loads leaves who has the prompt; the longest prefix never does."""
    shared = ["--replicas", "3", "--set", "sharing.system=2000"]
    folder = run(tmp_path, *shared, "--router", "cache-aware", "--set", "router.balance_abs=0")
    sent = rows(folder / "requests.csv")
    against = [int(r["best_predicted_tokens"]) > int(r["predicted_cached_tokens"]) for r in sent]
    share = sum(against) / len(against)
    assert 0 < share < 1
    assert f"balance      {100 * share:.2f} % of requests went elsewhere" in capsys.readouterr().out
    document = json.loads((folder / "run.json").read_text())
    assert document["fleet"]["against_belief"] == pytest.approx(share)
    run(tmp_path, *shared, "--router", "longest-prefix")
    assert "balance      0.00 % of requests went elsewhere" in capsys.readouterr().out
    run(tmp_path, *shared, "--router", "round-robin")
    assert "balance" not in capsys.readouterr().out


def test_where_policies_cross_is_one_picture(tmp_path):
    """Prefixes x load x policy: each tail over that of the first policy, in numbers too."""
    axes = ["--grid", "sharing.groups=2,8", "--grid", "arrivals.rate=20,400", "--grid", "router.policy=random,kv-aware"]
    folder = run(tmp_path, "--replicas", "2", *axes)
    assert call(["plot", str(folder), "--what", "fleet", "-o", str(tmp_path / "f.svg"), "-q"]) == 0
    drawn = (tmp_path / "f-2.svg").read_text()
    for words in ("TTFT p99 against random", "kv-aware, rate 20", "kv-aware, rate 400", "times that of random"):
        assert words in drawn
    chart = crossing(read_sources([folder]).tables[0])
    tails = {tuple(row.values): row.figures["p99_ttft_ms"] for row in read_sources([folder]).tables[0].rows}
    assert [row[0] for row in chart.table] == ["2", "8"]
    for groups, *ratios in chart.table:
        for rate, ratio in zip(("20", "400"), ratios, strict=True):
            assert float(ratio) == pytest.approx(
                tails[groups, rate, "kv-aware"] / tails[groups, rate, "random"], abs=1e-3
            )


def test_routers_in_one_picture(tmp_path):
    """Hit rate and queue p99 of each engine by policy, in `plot` and in the page of a grid."""
    grid = ["--replicas", "2", "--grid", "router.policy=round-robin,cache-aware"]
    folder = run(tmp_path, *grid)
    assert call(["plot", str(folder), "--what", "fleet", "-o", str(tmp_path / "f.svg"), "-q"]) == 0
    assert call(["report", str(folder), "-o", str(tmp_path / "r.html"), "-q"]) == 0
    page = (tmp_path / "r.html").read_text()
    assert "<h2>Engines</h2>" in page
    for point in sorted(folder.glob("00*")):
        document = json.loads((point / "run.json").read_text())
        most = max(e["queue_p99_ms"] or 0 for e in document["fleet"]["engines"])
        assert f"<td>{document['fleet']['router']}</td>" in page
        assert f"<td>{most:,.1f} ms</td>" in page


def test_keys_of_any_router_hold_for_the_usual_one_too(capsys):
    """Each engine is built by itself, where nothing of a router has any effect."""
    line = ["run", "chat", "--num-prompts", "4", "--set", "lengths.output=3", "-q", "--json"]
    for key in ("router.counter=each-set", "router.routers=2", "router.decide_us=100"):
        assert call([*line, "--replicas", "2", "--set", key]) == 0
        assert call([*line, "--set", key]) == 2
    assert "has no effect on one engine" in capsys.readouterr().err


@pytest.mark.parametrize(
    "key", ["router.decide_us=1e18", "router.refresh_ms=inf", "scheduler.step_target_ms=inf", "pd.lease_s=inf"]
)
def test_times_have_an_end(key, capsys):
    assert call(["run", "chat", "--num-prompts", "4", "--replicas", "2", "--set", key]) == 2
    assert "at most" in capsys.readouterr().err
