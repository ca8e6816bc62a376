"""Replays recordings of real prefill / decode pairs through the oracles; every recorded field must be equal."""

from __future__ import annotations

import pytest

from tests.recordings import read_recording, recording_params

from . import pd_push as push
from .pd_pull import DecodeSide, LeaseRules, PrefillSide
from .sglang_admission import SchedulerConfig as PrefillConfig
from .sglang_memory import Request, TokenContent
from .vllm_scheduler import VLLM_0_33, SchedulerConfig, new_request

START = 1000.0


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
        return (
            self.step_of(plan, result)
            | not_empty(
                lease_start=started,
                read_done=sorted(read),
                lease_expired=expired,
                late_notifs=late,
                handoff=handoff,
                lease={i: end - START for i, end in sorted(side.leases.items())},
            )
            | self.queues(side)
        )

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
        return (
            self.step_of(plan, result)
            | not_empty(
                recv_start=starts,
                notify_only=notify_only,
                recv_done=[i for i, good in ended if good],
                recv_failed=[i for i, good in ended if not good],
                heartbeat=beat,
                heartbeat_lost=is_lost and bool(beat),
            )
            | self.queues(side)
        )

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


@pytest.mark.parametrize("path", recording_params("vllm_pd_*"))
def test_pull_equals_recording(path):
    header, ticks, _ = read_recording(path)
    wire = PullWire(header)
    for tick in ticks:
        assert_equal(path, tick, wire.tick(tick["t"]))


class PushWire:
    """Router, network and workers of a push pair."""

    def __init__(self, header):
        self.params = p = header["params"]
        size = p["page_size"]
        config = PrefillConfig(
            num_kv_tokens=p["P"]["kv_tokens"],
            page_size=size,
            max_running_requests=p["P"]["max_running"],
            chunked_prefill_size=p["P"]["chunk"],
            schedule_policy="fcfs",
        )
        self.prefill = push.PrefillQueues(config, p["bootstrap_timeout"])
        self.decode = push.DecodeQueues(
            push.DecodeConfig(
                p["D"]["kv_tokens"],
                size,
                p["D"]["max_running"],
                p["D"]["pre_alloc"],
                p["reserved"],
                p["waiting_timeout"],
                p.get("poll_interval", 1),
                p.get("d_radix", False),
            )
        )
        self.specs = header["requests"]
        self.number = {spec["id"]: i for i, spec in enumerate(self.specs)}
        self.senders, self.receivers = {}, {}
        self.arrived_at_d, self.page_list_at, self.last_sent_at = {}, {}, {}
        self.done, self.aborted = set(), set()

    def request(self, spec, max_new_tokens):
        prompt = tokens_of(spec["prompt"])
        number = self.number[spec["id"]]
        tokens = prompt + [900000 + 1000 * number + k for k in range(spec["max_tokens"] + 1)]
        return Request(spec["id"], len(prompt), max_new_tokens, TokenContent(tokens, self.params["page_size"]))

    def tick(self, t):
        transport = []
        for spec in self.specs:
            self.move(spec, t, transport)
        arrive_p = [spec["id"] for spec in self.specs if spec["arrive"] == t]
        arrive_d = [spec["id"] for spec in self.specs if spec["arrive"] + spec.get("d_lag", 0) == t]
        for request_id in arrive_p:
            spec = self.specs[self.number[request_id]]
            link = self.senders[request_id] = push.Link(self.request(spec, 1), spec["room"], since=t)
            self.prefill.arrive(link)
        for request_id in arrive_d:
            spec = self.specs[self.number[request_id]]
            link = self.receivers[request_id] = push.Link(self.request(spec, spec["max_tokens"]), spec["room"])
            self.arrived_at_d[request_id] = t
            self.decode.arrive(link)
        abort_p = self.abort("P", transport)
        abort_d = self.abort("D", transport)
        out = {"P": self.step_prefill(t), "D": self.step_decode(t)} | not_empty(transport=transport)
        head = not_empty(arrive_p=arrive_p, arrive_d=arrive_d, abort_p=abort_p, abort_d=abort_d)
        return {"t": t, **head, "out": out}

    def move(self, spec, t, transport):
        p, i, room, fault = self.params, spec["id"], spec["room"], spec.get("fault")
        sender, receiver = self.senders.get(i), self.receivers.get(i)
        at_d = self.arrived_at_d.get(i)
        if at_d is not None and t == at_d + p["handshake_delay"] and receiver.status == push.BOOTSTRAPPING:
            receiver.status = push.FAILED if fault == "handshake_fail" else push.READY
            transport.append(["d_failed" if fault == "handshake_fail" else "handshake", room])
        listed = self.page_list_at.get(i)
        if listed is not None and t == listed + p["meta_delay"] and fault != "meta_lost":
            if sender.status == push.BOOTSTRAPPING:
                sender.status, sender.prefix = push.READY, receiver.prefix
            transport.append(["meta_at_p", room])
        sent = self.last_sent_at.get(i)
        if sent is None or i in self.done or sender.status == push.FAILED:
            return
        if fault == "p_dies":
            if t == sent + 1:
                self.end(i, push.FAILED, transport, ["both_failed", room])
            return
        if t < sent + spec.get("delay", p["transfer_delay"]):
            return
        if fault == "xfer_fail":
            self.end(i, push.FAILED, transport, ["both_failed", room])
        elif fault == "done_lost":
            self.done.add(i)
            sender.status = push.SUCCESS
            transport.append(["p_success", room])
        else:
            self.end(i, push.SUCCESS, transport, ["success", room])
            self.decode.slot_rooms[receiver.slot] = room + 1 if fault == "corrupt" else room

    def end(self, i, status, transport, entry):
        self.done.add(i)
        for link in (self.senders[i], self.receivers[i]):
            if link.status != push.FAILED:
                link.status = status
        transport.append(entry)

    def abort(self, side, transport):
        links = self.senders if side == "P" else self.receivers
        queues = self.prefill if side == "P" else self.decode
        aborted = []
        for spec in self.specs:
            i, wanted = spec["id"], spec.get(f"abort_{side.lower()}")
            if wanted is None or i in self.aborted or i not in links:
                continue
            link = links[i]
            members = getattr(queues, wanted)
            if wanted == "running":
                is_there = link.request in members and link.request.num_output >= 2
                is_there &= link.request.finish_reason is None
            else:
                is_there = link in members or link.request in members
            if is_there:
                self.aborted.add(i)
                aborted.append(i)
                if queues.abort(link):
                    transport.append(["out", side, i, "AbortReq"])
        return aborted

    def step_prefill(self, t):
        side = self.prefill
        bootstrapped, plan, done = side.step(t)
        side.check_integrity()
        for link in side.sent:
            self.last_sent_at[link.id] = t
        rows = [list(row) for row in plan.batch.rows] if plan.batch else []
        return not_empty(
            bootstrapped=[link.id for link in bootstrapped],
            batch=rows,
            chunked=side.chunked and side.chunked.id,
            log=side.log,
            done=done,
        ) | {
            "q": [[r.id for r in queue] for queue in (side.bootstrap, side.waiting, side.inflight)],
            "mem": [
                *side.memory.sizes(),
                len(side.slots.free),
                side.config.max_running_requests - len(side.memory.holders),
            ],
        }

    def step_decode(self, t):
        side = self.decode
        got = side.step(t)
        side.memory.check_integrity()
        for link in side.page_lists:
            self.page_list_at[link.id] = t
        allocatable = got.pop("allocatable")
        return not_empty(**got, log=side.log) | {
            "allocatable": allocatable,
            "q": [
                [[link.id, link.is_ready] for link in side.prealloc],
                *([r.id for r in queue] for queue in (side.transfer, side.waiting, side.retracted, side.running)),
            ],
            "mem": [*side.memory.sizes(), len(side.slots.free), side.num_free_rows],
        }


@pytest.mark.parametrize("path", recording_params("sglang_pd_*"))
def test_push_equals_recording(path):
    header, ticks, _ = read_recording(path)
    wire = PushWire(header)
    for tick in ticks:
        assert_equal(path, tick, wire.tick(tick["t"]))
