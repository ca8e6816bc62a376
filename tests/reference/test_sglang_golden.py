"""Replays every sglang_* recording of the real engine through the oracle and compares every recorded field."""

import pytest

from tests.recordings import read_recording, recording_params

from .radix import RadixTree
from .sglang_admission import (
    LPM_FALLBACK_NUM_WAITING,
    AdmissionResult,
    PrefillAdmission,
    SchedulerConfig,
    WaitingOrder,
)
from .sglang_memory import Request, RequestMemory, TokenContent
from .sglang_scheduler import SglangScheduler

INTEGRITY_EVERY = 25  # steps


def check_fields(path, step, expected, got):
    """Every recorded field equals what the oracle says, and the oracle says nothing else."""
    where = f"{path.name} step {step}"
    assert set(got) == set(expected), f"{where}: fields {sorted(set(got) ^ set(expected))} are on one side only"
    for field, value in expected.items():
        assert got[field] == value, f"{where} field {field!r}:\n  expected {value}\n  got      {got[field]}"


# -- content of the tree -----------------------------------------------------------------------------------------


def block_keys(tokens, page_size):
    """Keys of the whole pages of tokens: the token itself when a page holds one."""
    if page_size == 1:
        return list(tokens)
    return [tuple(tokens[i : i + page_size]) for i in range(0, len(tokens) - page_size + 1, page_size)]


def merged_ranges(first_slots, page_size):
    """[[start, len], ...]: runs of consecutive slots, each value being the first slot of a page."""
    ranges = []
    for slot in first_slots:
        if ranges and sum(ranges[-1]) == slot:
            ranges[-1][1] += page_size
        else:
            ranges.append([slot, page_size])
    return ranges


def tree_rows(tree, page_size, first_slot=lambda value: value):
    """Preorder rows as recorded: [depth, len, first_slot, lock_ref, hit_count, priority, ns]."""

    def visit(node, depth):
        for child in sorted(node.children.values(), key=lambda n: (n.namespace or "", n.keys)):
            slot = first_slot(child.values[0])
            length = len(child.keys) * page_size
            rows.append([depth, length, slot, child.lock_ref, child.hit_count, child.priority, child.namespace])
            visit(child, depth + length)

    rows = []
    visit(tree.root, 0)
    return rows


# -- sglang_radix ------------------------------------------------------------------------------------------------


class RadixReplay:
    """One sglang_radix stream: the value of a block is its first slot."""

    def __init__(self, params, version):
        self.page_size = params["page_size"]
        self.is_newer = version != "0.5.12"
        self.tree = RadixTree(params["policy"], self.is_newer, tail_of(params) // self.page_size)
        self.last_match_node = None
        self.locked_nodes = {}  # handle -> node

    def run(self, op):
        out = getattr(self, op["op"])(op)
        size = self.page_size
        out["evictable"] = self.tree.num_evictable * size
        out["protected"] = self.tree.num_protected * size
        out["total"] = out["evictable"] + out["protected"]
        return out

    def match(self, op):
        match = self.tree.match_and_split(block_keys(op["key"], self.page_size), op.get("ns"))
        self.last_match_node = match.node
        slots = merged_ranges(match.values, self.page_size)
        return {"len": len(match.values) * self.page_size, "slots": slots}

    def insert(self, op):
        keys = block_keys(op["key"], self.page_size)
        values = [op["slot_base"] + i * self.page_size for i in range(len(keys))]
        is_chunk = op.get("chunked", False) and not self.is_newer
        num_counted = op.get("inserted", 0) // self.page_size if self.is_newer else 0
        num_present = self.tree.insert(keys, values, op.get("ns"), op.get("priority", 0), is_chunk, num_counted)
        return {"prefix_len": num_present * self.page_size}

    def lock(self, op):
        self.locked_nodes[op["h"]] = self.last_match_node
        return {"delta": self.tree.lock(self.last_match_node) * self.page_size}

    def unlock(self, op):
        return {"delta": self.tree.unlock(self.locked_nodes.pop(op["h"])) * self.page_size}

    def evict(self, op):
        evicted = self.tree.evict(-(-op["n"] // self.page_size))
        segs = [rng for values in evicted for rng in merged_ranges(values, self.page_size)]
        return {"evicted": sum(map(len, evicted)) * self.page_size, "segs": segs}


@pytest.mark.parametrize("path", recording_params("sglang_radix_*"))
def test_radix_stream(path):
    header, steps, last = read_recording(path)
    replay = RadixReplay(header["params"], header["version"])
    totals = {"match_hit": 0, "evicted": 0, "locks": 0, "ops": 0}
    for i, op in enumerate(steps):
        out = replay.run(op)
        if "tree" in op["out"]:
            out["tree"] = tree_rows(replay.tree, replay.page_size)
        check_fields(path, i, op["out"], out)
        if i % INTEGRITY_EVERY == 0:
            replay.tree.check_integrity()
        totals["match_hit"] += out.get("len", 0) > 0
        totals["evicted"] += out.get("evicted", 0)
        totals["locks"] += op["op"] == "lock"
        totals["ops"] += 1
    check_fields(path, "summary", last["summary"], totals)


# -- sglang_sched ------------------------------------------------------------------------------------------------


def tail_of(params):
    """Tokens that tlru may drop."""
    config = params.get("eviction_policy_config", {})
    return config.get("threshold", 0) - config.get("next_prompt_estimate", 0)


def config_from(params, version):
    """Params of a recording; kv_tokens is called num_kv_tokens here, notes of the recorder are dropped."""
    known = set(SchedulerConfig.__dataclass_fields__)
    chosen = {name: value for name, value in params.items() if name in known}
    dropped = (
        set(params)
        - known
        - {
            "kv_tokens",
            "context_len",
            "schedule_conservativeness",
            "decay_steps",
            "eviction_policy_config",
        }
    )
    assert not dropped, f"parameters the oracle does not know: {sorted(dropped)}"
    own = {"is_newer": version != "0.5.12", "tail": tail_of(params)}
    return SchedulerConfig(num_kv_tokens=params["kv_tokens"], **chosen, **own)


class SchedulerReplay:
    """One sglang_sched stream."""

    def __init__(self, header):
        self.scheduler = SglangScheduler(config_from(header["params"], header["version"]))
        page_size = self.scheduler.config.page_size
        self.requests = {}
        for r in header["requests"]:
            content = TokenContent(r["prompt"] + r["output"], page_size)
            asked = (r["max_tokens"], content, r.get("ns"), r.get("priority", 0))
            self.requests[r["id"]] = Request(r["id"], len(r["prompt"]), *asked)
        self.first_sched, self.finish = {}, {}
        names = ["retract", "evicted", "hit", "prefill_steps", "decode_steps", "mixed", "chunked"]
        self.totals = dict.fromkeys(names, 0)

    def run(self, step):
        for request_id in step.get("arrive", []):
            self.scheduler.add(self.requests[request_id])
        plan = self.scheduler.schedule()
        is_idle = plan.batch is None and self.scheduler.is_idle
        assert is_idle == step.get("idle", False), f"step {step['step']}: idle is {is_idle}"
        if plan.batch is None:
            assert not plan.evicted, f"step {step['step']}: eviction without a batch"
            return {"mode": None, "evicted_sched": [], **self._state()}
        return self._decision(step["step"], plan)

    def _decision(self, step_index, plan):
        page_size = self.scheduler.config.page_size
        out = {
            "mode": plan.batch.mode.value,
            "batch": [list(row) for row in plan.batch.rows],
            "chunked_req": self.scheduler.chunked and self.scheduler.chunked.id,
            "mem_sched": plan.sizes,
            "evicted_sched": [len(values) * page_size for values in plan.evicted],
        }
        if plan.retracted or plan.oom_aborted:
            out["retracted"] = [r.id for r in plan.retracted]
            out["oom_aborted"] = [r.id for r in plan.oom_aborted]
        result = self.scheduler.update(plan)
        out["emitted"] = [r.id for r in result.emitted]
        out["finished"] = [r.id for r in result.finished]
        self._count(step_index, out)
        return {**out, **self._state()}

    def _state(self):
        scheduler = self.scheduler
        return {
            "mem": scheduler.memory.sizes(),
            "waiting": [r.id for r in scheduler.waiting],
            "running": [r.id for r in scheduler.running.requests],
            "batch_is_full": scheduler.running.is_full,
            "new_token_ratio": round(scheduler.new_token_ratio, 9),
        }

    def _count(self, step_index, out):
        self.totals["retract"] += len(out.get("retracted", []))
        self.totals["evicted"] += sum(out["evicted_sched"])
        self.totals["prefill_steps"] += out["mode"] in ("EXTEND", "MIXED")
        self.totals["decode_steps"] += out["mode"] == "DECODE"
        self.totals["mixed"] += out["mode"] == "MIXED"
        self.totals["chunked"] += out["chunked_req"] is not None
        for request_id, *_ in out["batch"]:
            self.first_sched.setdefault(request_id, step_index)
        self.finish.update(dict.fromkeys(out["finished"], step_index))

    def summary(self, num_steps):
        rows = [
            {
                "id": r.id,
                "first_sched": self.first_sched.get(r.id),
                "finish": self.finish.get(r.id),
                "cached_tokens": r.num_cached or 0,  # 0 also of one that was never scheduled
                "retractions": r.num_retractions,
                "num_output": r.num_output,
            }
            for r in self.requests.values()
        ]
        self.totals["hit"] = sum(row["cached_tokens"] > 0 for row in rows)
        return {"summary": rows, "steps": num_steps, "totals": self.totals}


@pytest.mark.parametrize("path", recording_params("sglang_sched_*"))
def test_scheduler_stream(path):
    header, steps, last = read_recording(path)
    replay = SchedulerReplay(header)
    for i, step in enumerate(steps):
        decision = replay.run(step)
        if "oom_aborted" not in step["out"]:  # some streams do not name them
            decision.pop("oom_aborted", None)
        check_fields(path, step["step"], step["out"], decision)
        if i % INTEGRITY_EVERY == 0:
            replay.scheduler.check_integrity()
    replay.scheduler.check_integrity()
    check_fields(path, "summary", last, replay.summary(len(steps)))


# -- sglang_reqlevel ---------------------------------------------------------------------------------------------


def slots_of(blocks, page_size, num_tokens=None):
    """Merged slot ranges of the first num_tokens tokens held in blocks. A page p holds slots p * page_size + offset."""
    first_slots = blocks if page_size == 1 else [page * page_size for page in blocks]
    ranges = merged_ranges(first_slots, page_size)
    if num_tokens is not None and ranges:
        ranges[-1][1] -= len(blocks) * page_size - num_tokens
    return ranges


class RequestLevelReplay:
    """One sglang_reqlevel stream: single requests against memory, no scheduler."""

    def __init__(self, params):
        self.page_size = params["page_size"]
        self.memory = RequestMemory(params["kv_tokens"], self.page_size, params["policy"])
        self.requests = {}
        self.totals = dict.fromkeys(["hit", "full", "evicted", "finish", "retract", "chunked", "ops"], 0)

    def run(self, op):
        self.memory.evicted = []
        self.totals["ops"] += 1
        request = self._request(op) if "id" in op else None
        out = getattr(self, "op_" + op["op"])(op, request)
        out["evicted"] = [slots_of(values, self.page_size) for values in self.memory.evicted]
        out["mem"] = self.memory.sizes()
        self.totals["evicted"] += sum(map(len, self.memory.evicted)) * self.page_size
        return out

    def tree_rows(self):
        return tree_rows(self.memory.tree, self.page_size, lambda block: slots_of([block], self.page_size)[0][0])

    def _request(self, op):
        if "prompt" in op:
            content = TokenContent(op["prompt"], self.page_size)
            request = Request(op["id"], len(op["prompt"]), None, content, op.get("ns"), op.get("priority", 0))
            self.requests[op["id"]] = request
        return self.requests[op["id"]]

    def _append(self, request, token):
        request.content.append(token)
        request.num_output += 1

    def _prefill(self, request, chunk):
        """Cut to the chunk if that leaves something, allocate."""
        is_chunked = False
        if chunk is not None and request.num_extend > chunk:
            num_fill = (request.num_prefix + chunk) // self.page_size * self.page_size
            if num_fill > request.num_prefix:
                request.num_fill, is_chunked = num_fill, True
        num_prefix, num_extend = request.num_prefix, request.num_extend
        self.memory.allocate_prefill([request])
        self.totals["chunked"] += is_chunked
        return {
            "prefix_len": num_prefix,
            "extend_len": num_extend,
            "chunked": is_chunked,
            **self._row(request),
        }

    def _row(self, request):
        return {"slots": slots_of(request.row, self.page_size, request.num_kv)}

    def op_start(self, op, request):
        self.memory.begin_prefill(request)
        self.memory.lock(request)
        out = self._prefill(request, op["chunk"])
        self.totals["hit"] += out["prefix_len"] > 0
        self.totals["full"] += out["prefix_len"] > 0 and out["extend_len"] <= self.page_size
        return out

    def op_lookup_only(self, op, request):
        match = self.memory.match(request, request.num_tokens - 1)
        return {"prefix_len": len(match.values) * self.page_size}

    def op_prefill_done(self, op, request):
        self._append(request, op["token"])
        self.memory.insert_unfinished(request)
        return {"cache_protected_len": request.num_protected, **self._row(request)}

    def op_chunk_done(self, op, request):
        self.memory.insert_unfinished(request, is_chunk=True)
        lengths = {"cache_protected_len": request.num_protected, "prefix_len": request.num_prefix}
        return {**lengths, **self._row(request)}

    def op_continue(self, op, request):
        request.num_fill = request.num_tokens
        return self._prefill(request, op["chunk"])

    def op_decode(self, op, request):
        self.memory.allocate_decode([request])
        self._append(request, op["token"])
        return {"kv_len": request.num_kv, **self._row(request)}

    def op_finish(self, op, request):
        self.memory.finish(request)
        self.totals["finish"] += 1
        return {}

    def op_retract(self, op, request):
        self.memory.retract(request)
        self.totals["retract"] += 1
        return {}

    def op_evict(self, op, request):
        return {"num_evicted": self.memory.evict(op["n"])}


@pytest.mark.parametrize("path", recording_params("sglang_reqlevel_*"))
def test_request_level_stream(path):
    header, steps, last = read_recording(path)
    replay = RequestLevelReplay(header["params"])
    for i, op in enumerate(steps):
        out = replay.run(op)
        if "tree" in op["out"]:
            out["tree"] = replay.tree_rows()
        check_fields(path, i, op["out"], out)
        if i % INTEGRITY_EVERY == 0:
            replay.memory.check_integrity()
    check_fields(path, "summary", last["summary"], replay.totals)


# -- sglang_policy -----------------------------------------------------------------------------------------------


class PolicyReplay:
    """One sglang_policy stream: order of the waiting queue and admission, no batches."""

    def __init__(self, params, version):
        policy, is_newer = params["schedule_policy"], version != "0.5.12"
        self.config = SchedulerConfig(
            params["kv_tokens"],
            params["page_size"],
            schedule_policy=policy,
            ignore_eos=params.get("ignore_eos", False),
            is_newer=is_newer,
        )
        self.memory = RequestMemory(params["kv_tokens"], params["page_size"], is_newer=is_newer)
        self.order = WaitingOrder(self.config, self.memory)
        self.num_asked = 0
        self.totals = dict.fromkeys(["calc", "adder", "moved", "chunked", "no_token", "other", "cont"], 0)

    def run(self, op):
        return getattr(self, op["op"])(op)

    def _request(self, r):
        outputs = r.get("output_so_far", [])
        content = TokenContent(r["prompt"] + outputs, self.config.page_size)
        request = Request(r["id"], len(r["prompt"]), r["max_tokens"], content, r.get("ns"))
        request.num_output = len(outputs)
        request.num_processed_then = r.get("arrival_processed", 0)
        self.num_asked += 1
        request.entry = self.num_asked
        return request

    def insert(self, op):
        keys = block_keys(op["key"], self.config.page_size)
        self.memory.make_room(len(keys) * self.config.page_size)
        blocks = self.memory.allocator.take(len(keys))
        num_present = self.memory.tree.insert(keys, blocks, op.get("ns"))
        self.memory.allocator.free(blocks[:num_present])
        return {"prefix_len": num_present * self.config.page_size, "mem": self.memory.sizes()}

    def evict(self, op):
        return {"evicted": self.memory.evict(op["n"]), "mem": self.memory.sizes()}

    def calc_priority(self, op):
        waiting = [self._request(r) for r in op["waiting"]]
        self.order.num_processed = op.get("processed", 0)
        self.order.sort(waiting)
        order = [r.id for r in waiting]
        self.totals["calc"] += 1
        self.totals["moved"] += order != [r["id"] for r in op["waiting"]]
        out = {"order": order, "mem": self.memory.sizes()}
        is_few = len(waiting) <= LPM_FALLBACK_NUM_WAITING
        is_matched = {"lpm": is_few, "hrrn": is_few, "dfs-weight": True, "shortest-prefill-first": True}
        if is_matched.get(self.config.schedule_policy):
            out["prefix_lens"] = {r.id: r.num_prefix for r in waiting}
        return out

    def prefill_adder(self, op):
        num_held = min(op["held_tokens"] // self.config.page_size, self.memory.allocator.num_free)
        held = self.memory.allocator.take(num_held)
        running = [Request(None, 0, r["max_tokens"], None) for r in op["running"]]
        for request, r in zip(running, op["running"], strict=False):
            request.num_output = r["num_output"]
        admission = PrefillAdmission(
            self.config,
            self.memory,
            running,
            op["new_token_ratio"],
            op["rem_input_tokens"],
            op["rem_chunk_tokens"],
            op["num_mixed_decode_tokens"],
            op["prefill_max_requests"],
        )
        out = {"mem0": self.memory.sizes(), "budget0": self._budget(admission)}
        out["steps"] = [self._feed(admission, self._request(r)) for r in op["reqs"]]
        out["mem1"] = self.memory.sizes()
        for request in admission.admitted:
            self.memory.unlock(request)
        self.memory.allocator.free(held)
        self.totals["adder"] += 1
        return out

    def _feed(self, admission, request):
        self.memory.begin_prefill(request)
        result = admission.add(request)
        is_added = request in admission.admitted
        is_chunked = request is admission.new_chunked
        self.totals["chunked"] += is_chunked
        tally = {
            AdmissionResult.CONTINUE: "cont",
            AdmissionResult.NO_TOKEN: "no_token",
            AdmissionResult.OTHER: "other",
        }
        self.totals[tally[result]] += 1
        return {
            "id": request.id,
            "prefix_len": request.num_prefix,
            "added": is_added,
            "result": result.value,
            "extend_len": request.num_extend if is_added else None,
            "chunked": is_chunked,
            "budget": self._budget(admission),
        }

    def _budget(self, admission):
        return {
            "rem_total": round(admission.rem_total, 6),
            "cur_rem": admission.cur_rem,
            "rem_input": admission.rem_input,
            "rem_chunk": admission.rem_chunk,
        }


@pytest.mark.parametrize("path", recording_params("sglang_policy_*"))
def test_policy_stream(path):
    header, steps, last = read_recording(path)
    replay = PolicyReplay(header["params"], header["version"])
    for i, op in enumerate(steps):
        check_fields(path, i, op["out"], replay.run(op))
        if i % INTEGRITY_EVERY == 0:
            replay.memory.check_integrity()
    check_fields(path, "summary", last["summary"], replay.totals)
