"""Replays recordings of real prefill / decode pairs through the oracles; every recorded field must be equal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.recordings import CHOICE, SHARED, read_recording, recording_name

from .block_hash import BlockTables
from .pd_pull import DecodeSide, LeaseRules, PrefillSide
from .vllm_scheduler import VLLM_0_33, SchedulerConfig, new_request

START = 1000.0


def recordings(pattern):
    """Those that come with the repository, and where they lie beside the checkout all of them."""
    folders = [Path(os.environ.get("KVBENCH_GOLDEN_PD", SHARED / "recordings" / "pd")), CHOICE]
    found = {recording_name(path): path for folder in folders for path in folder.glob(pattern)}
    return [pytest.param(path, id=name) for name, path in sorted(found.items())]


def tokens_of(runs):
    return [doc * 10000 + start + j for doc, start, count in runs for j in range(count)]


def not_empty(**fields):
    return {name: value for name, value in fields.items() if value}


class PullWire:
    """Router, network and workers of a pull pair, as the script beside the recorded engines plays them."""

    def __init__(self, header):
        self.params = p = header["params"]
        lease = LeaseRules(p["lease"])
        self.prefill = PrefillSide(SchedulerConfig(**p["P"]), VLLM_0_33, lease)
        self.decode = DecodeSide(SchedulerConfig(**p["D"]), VLLM_0_33, lease, p["failure_policy"] == "fail")
        self.specs = {spec["id"]: spec for spec in header["requests"]}
        self.number = {spec["id"]: i for i, spec in enumerate(header["requests"])}
        self.handed = []  # (tick, number of the hand-off, id)
        self.remote_blocks = {}
        self.mail = []  # (tick, kind, ids) to P
        self.reads = []  # [end, id], in the order they were started
        self.aborted = set()

    def request(self, request_id, side, max_tokens):
        spec = self.specs[request_id]
        prompt = tokens_of(spec["prompt"])
        tokens = prompt + [900000 + 1000 * self.number[request_id] + k for k in range(spec["max_tokens"] + 1)]
        size = self.params[side]["block_size"]
        keys = lambda i: tuple(tokens[i * size : (i + 1) * size])  # noqa: E731
        return new_request(request_id, len(prompt), max_tokens, keys)

    def tick(self, t):
        now = START + t * self.params["dt"]
        arrive = [i for i, spec in self.specs.items() if spec["arrive"] == t]
        for request_id in arrive:
            self.prefill.add(self.request(request_id, "P", 1))
        abort_p = [i for i, spec in self.specs.items() if spec.get("abort_p") == t]
        for request_id in abort_p:
            self.prefill.abort(request_id)
        out_p = self.step_prefill(t, now)
        due = sorted(h for h in self.handed if h[0] <= t)
        self.handed = [h for h in self.handed if h[0] > t]
        to_d = [i for _, _, i in sorted(due, key=lambda h: h[1])]
        for request_id in to_d:
            self.decode.add(self.request(request_id, "D", self.specs[request_id]["max_tokens"]))
        notify_only = []
        abort_d = self.abort_decode(notify_only)
        out_d = self.step_decode(t, now, notify_only)
        head = not_empty(arrive=arrive, to_d=to_d, abort_p=abort_p, abort_d=abort_d)
        return {"t": t, **head, "out": {"P": out_p, "D": out_d}}

    def step_prefill(self, t, now):
        side = self.prefill
        side.now = now
        plan = side.schedule()
        started = side.start_leases()
        due = [m for m in self.mail if m[0] <= t]
        self.mail = [m for m in self.mail if m[0] > t]
        read, late = [], 0
        for _, kind, ids in due:
            if kind == "heartbeat":
                side.heartbeat(ids)
            elif side.read(ids):
                read.append(ids)
            else:
                late += 1
        expired = side.expired()
        result = side.update(plan)
        handoff = []
        for request_id, reason in result.finished:
            assert reason == "length"
            blocks = side.tables.block_ids(request_id)
            self.remote_blocks[request_id] = blocks
            spec = self.specs[request_id]
            if not spec.get("never_d"):
                handoff.append([request_id, blocks, side.zombies[request_id].num_computed_tokens])
                delay = spec.get("router", self.params["router_delay"])
                self.handed.append((t + delay, len(self.remote_blocks), request_id))
        side.let_go(read)
        side.let_go(expired)
        side.check_integrity()
        return self.step_of(plan, result) | not_empty(
            lease_start=started,
            read_done=sorted(read),
            lease_expired=expired,
            late_notifs=late,
            handoff=handoff,
            lease={i: end - START for i, end in sorted(side.leases.items())},
        ) | self.queues(side)

    def abort_decode(self, notify_only):
        side, aborted = self.decode, []
        for request_id, spec in self.specs.items():
            request = side._unfinished.get(request_id)
            if "abort_d" not in spec or request is None or request_id in self.aborted:
                continue
            if {
                "queued": request_id in side.remote,
                "loading": request_id in side.loading,
                "running": request in side.running and request.num_output_tokens >= 2,
            }[spec["abort_d"]]:
                aborted.append(request_id)
                self.aborted.add(request_id)
                if request_id in side.remote:
                    side.remote.remove(request_id)
                    notify_only.append(request_id)
                side.abort(request_id)
        return aborted

    def step_decode(self, t, now, notify_only):
        side, p = self.decode, self.params
        plan = side.schedule()
        starts = []
        for request_id in plan.loads:
            starts.append([request_id, side.loading[request_id].block_ids, self.remote_blocks[request_id]])
            delay = self.specs[request_id].get("delay", p["transfer_delay"])
            self.reads.append([t + delay, request_id])
        for request_id in notify_only:
            self.mail.append((t + p["notif_delay"], "read", request_id))
        beat = side.heartbeat(now)
        is_lost = any(a <= t < b for a, b in p.get("hb_loss", ()))
        if beat and not is_lost:
            self.mail.append((t + p["notif_delay"], "heartbeat", beat))
        ended = self.end_reads(t)
        result = side.update(plan)
        failed = side.end_reads(ended)
        result.finished += [(i, "error") for i in failed]
        side.check_integrity()
        return self.step_of(plan, result) | not_empty(
            recv_start=starts,
            notify_only=notify_only,
            recv_done=[i for i, good in ended if good],
            recv_failed=[i for i, good in ended if not good],
            heartbeat=beat,
            heartbeat_lost=is_lost and bool(beat),
        ) | self.queues(side)

    def end_reads(self, t):
        ended, left, has_failed = [], [], False
        for end, request_id in self.reads:
            fault = self.specs[request_id].get("fault")
            if end > t or (fault == "xfer_fail" and has_failed):
                left.append([end, request_id])
                continue
            is_good = fault != "xfer_fail"
            has_failed |= not is_good
            ended.append((request_id, is_good))
            if is_good and fault != "notif_lost":
                self.mail.append((t + self.params["notif_delay"], "read", request_id))
        self.reads = left
        return ended

    def step_of(self, plan, result):
        return not_empty(
            sched=[[i, row.start, row.num_tokens, row.block_ids] for i, row in plan.rows.items()],
            preempted=plan.preempted,
            emitted=result.emitted,
            finished=[list(pair) for pair in result.finished],
        )

    def queues(self, side):
        holding = getattr(side, "holding", [])
        return {
            "running": [r.request_id for r in side.running],
            "waiting": [r.request_id for r in side.waiting],
            "holding": [[r.request_id, "WAITING_FOR_REMOTE_KVS"] for r in holding],
            "free": side.pool.num_free,
            "zombies": sorted(side.zombies),
        }


def assert_equal(path, expected, got):
    for side in "PD":
        theirs, ours = expected["out"].pop(side), got["out"].pop(side)
        for name in sorted(theirs.keys() | ours.keys()):
            a, b = theirs.get(name), ours.get(name)
            assert a == b, f"{path.name}, t={expected['t']}, {side}.{name}"
    assert expected == got, f"{path.name}, t={expected['t']}"


@pytest.mark.parametrize("path", recordings("vllm_pd_*"))
def test_pull_equals_recording(path):
    header, ticks, _ = read_recording(path)
    wire = PullWire(header)
    for tick in ticks:
        assert_equal(path, tick, wire.tick(tick["t"]))
