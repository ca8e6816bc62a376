"""Recordings of real caches behind the device, through the pool of copies of a tier."""

from __future__ import annotations

import copy

import pytest

from kvbench.verify.golden import verify
from kvbench.verify.recording import Recording, Row, find_recordings, read_recording

from ..recordings import CHOICE, SHARED

KINDS = ("lmcache_cpu", "vllm_offmgr", "vllm_offconn", "vllm_simpleconn", "hicache")
CHOSEN = [p for p in find_recordings(CHOICE)[0] if p.name.startswith(KINDS)]
ALL = SHARED / "recordings" / "tiers"


@pytest.mark.parametrize("path", CHOSEN, ids=lambda p: p.name.partition(".")[0])
def test_every_recorded_value_agrees(path):
    verdict = verify(read_recording(path))
    assert (verdict.unknown, verdict.differences) == ("", ())
    assert verdict.agreed == verdict.steps > 50


def test_all_recordings_agree():
    if not ALL.is_dir():
        pytest.skip("the recordings are not on this machine")
    verdicts = [verify(read_recording(p)) for p in find_recordings(ALL)[0]]
    assert [v.name for v in verdicts if v.differences] == []
    assert sum(v.passed for v in verdicts) == 33


@pytest.mark.parametrize("path", CHOSEN, ids=lambda p: p.name.partition(".")[0])
def test_one_slot_more_is_noticed(path):
    recording = read_recording(path)
    rows = list(recording.rows)
    number = len(rows) // 2
    changed = Row(copy.deepcopy(dict(rows[number])), path, rows[number].line)
    if "running" in changed["out"]:
        changed["out"]["cpu"][0] += 1
    elif "mem" in changed["out"]:
        changed["out"]["mem"]["host"][0] += 1
    else:
        changed["out"].get("state", changed["out"])["free"] += 1
    rows[number] = changed
    verdict = verify(Recording(recording.name, recording.header, tuple(rows), recording.last))
    assert verdict.agreed == number
    assert len(verdict.differences) == 1
