"""Replays recordings of the real vLLM through the oracle; every recorded field must be equal at every step."""

from collections import Counter
from dataclasses import fields, replace

import pytest

from tests.recordings import chosen_recordings, read_recording, recording_params

from .block_hash import BlockPool, BlockTables, IntegrityError, TokenSequence
from .vllm_scheduler import VLLM_0_19, VLLM_0_33, SchedulerConfig, VllmScheduler, new_request

RULES = {"0.19.0": VLLM_0_19, "0.33.0": VLLM_0_33}
# The recorder left the free queue out of the files of larger pools.
MAX_BLOCKS_WITH_FREE_QUEUE = 96


class Mismatch(AssertionError):
    pass


class Comparison:
    """Compares whole records: a field that only one side has is a mismatch, too."""

    def __init__(self, path):
        self.path = path

    def require_equal(self, step, expected, got):
        for name in sorted(expected.keys() | got.keys()):
            self._require_field(step, name, expected.get(name, "<absent>"), got.get(name, "<absent>"))

    def _require_field(self, step, name, expected, got):
        if expected != got:
            raise Mismatch(f"{self.path.name}, {step}, field {name}:\n  expected {expected}\n  got      {got}")


def load(path):
    header, steps, last = read_recording(path)
    return header, steps, last["summary"]


def token_blocks(tokens, block_size):
    """Block keys that read the tokens at the time they are asked for, so the list may grow."""
    return lambda index: tuple(tokens[index * block_size : (index + 1) * block_size])


def pool_state(pool, with_free_queue):
    state = {"free": pool.num_free, "cached_hashes": pool.num_cached_chains}
    return state | ({"free_queue": list(pool.free_queue)} if with_free_queue else {})


# -- vllm_sched: the whole scheduler


class SchedulerReplay:
    def __init__(self, path, rules=None):
        self.header, self.steps, self.summary = load(path)
        self.comparison = Comparison(path)
        params = dict(self.header["params"])
        assert params.pop("async_scheduling") is False, "the oracle has no async scheduling"
        self.config = SchedulerConfig(**params)
        self.scheduler = VllmScheduler(self.config, rules or RULES[self.header["version"]])
        self.requests = {spec["id"]: self._request(spec) for spec in self.header["requests"]}
        self.first_step, self.finish_step = {}, {}

    def run(self):
        for record in self.steps:
            self._arrive_and_abort(record)
            is_idle = self.scheduler.num_unfinished == 0
            self.comparison.require_equal(
                f"step {record['step']}", {"idle": record.get("idle", False)}, {"idle": is_idle}
            )
            if not is_idle:
                self.comparison.require_equal(f"step {record['step']}", record["out"], self._step(record["step"]))
        got = [self._summary_of(spec["id"]) for spec in self.header["requests"]]
        assert len(got) == len(self.summary)
        for expected, row in zip(self.summary, got, strict=False):
            self.comparison.require_equal(f"summary of {row['id']}", expected, row)

    def _request(self, spec):
        output, eos = spec["output"], spec.get("eos")
        keys = token_blocks(spec["prompt"] + output, self.config.block_size)
        return new_request(
            spec["id"],
            len(spec["prompt"]),
            spec["max_tokens"],
            keys,
            namespace=spec.get("salt"),
            priority=spec.get("priority", 0),
            num_output_to_eos=output.index(eos) + 1 if eos in output else None,
        )

    def _arrive_and_abort(self, record):
        for request_id in record.get("arrive", []):
            self.scheduler.add(self.requests[request_id])
        for request_id in record.get("abort", []):
            assert self.scheduler.abort(request_id), f"abort of unknown {request_id}"
            self.finish_step[request_id] = record["step"]

    def _step(self, step):
        scheduler = self.scheduler
        plan = scheduler.schedule()
        scheduler.check_integrity()
        num_free_after_schedule = scheduler.pool.num_free
        result = scheduler.update(plan)
        scheduler.check_integrity()
        for request_id in plan.new:
            self.first_step[request_id] = step
        for request_id, _ in result.finished:
            self.finish_step[request_id] = step
        return pool_state(scheduler.pool, self.config.num_blocks <= MAX_BLOCKS_WITH_FREE_QUEUE) | {
            "sched": [[i, row.start, row.num_tokens, row.block_ids] for i, row in plan.rows.items()],
            "new": plan.new,
            "resumed": plan.resumed,
            "preempted": plan.preempted,
            "evicted": plan.evicted,
            "free_sched": num_free_after_schedule,
            "emitted": result.emitted,
            "finished": [list(pair) for pair in result.finished],
            "running": [request.request_id for request in scheduler.running],
            "waiting": [request.request_id for request in scheduler.waiting],
        }

    def _summary_of(self, request_id):
        request = self.requests[request_id]
        return {
            "id": request_id,
            "first_sched": self.first_step.get(request_id),
            "finish": self.finish_step.get(request_id),
            "reason": request.finish_reason,
            "num_cached_tokens": request.num_cached_tokens,
            "num_preemptions": request.num_preemptions,
            "num_output": request.num_output_tokens,
        }


@pytest.mark.parametrize("path", recording_params("vllm_sched_*"))
def test_scheduler_equals_recording(path):
    SchedulerReplay(path).run()


# -- vllm_kvmgr: block tables alone


class TablesReplay:
    def __init__(self, path):
        self.header, self.ops, self.summary = load(path)
        self.comparison = Comparison(path)
        params = self.header["params"]
        self.block_size = params["block_size"]
        self.is_caching = params["enable_prefix_caching"]
        self.pool = BlockPool(params["num_blocks"], RULES[self.header["version"]].frees_unhashed_to_front)
        self.tables = BlockTables(self.pool, self.block_size, params["max_model_len"], self.is_caching)
        self.sequences, self.tokens, self.hits = {}, {}, {}
        self.counts = Counter(evict=0, hit=0, fail=0, full=0, ops=0)

    def run(self):
        for index, record in enumerate(self.ops):
            out = getattr(self, "_" + record["op"])(record)
            self.tables.check_integrity()
            evicted = self.pool.drain_evicted()
            self.counts.update(evict=len(evicted), ops=1)
            got = out | {"evicted": evicted} | pool_state(self.pool, with_free_queue=True)
            self.comparison.require_equal(f"op {index} {record['op']}", record["out"], got)
        self.comparison.require_equal("summary", self.summary, dict(self.counts))

    def _new(self, record):
        request_id = record["id"]
        tokens = self.tokens[request_id] = list(record["prompt"])
        content = self.tables.new_content(record.get("salt"), token_blocks(tokens, self.block_size))
        self.sequences[request_id] = TokenSequence(request_id, content, len(tokens))
        return self._num_hashes(request_id)

    def _append(self, record):
        self.tokens[record["id"]].extend(record["tokens"])
        self.sequences[record["id"]].num_tokens += len(record["tokens"])
        return self._num_hashes(record["id"])

    def _num_hashes(self, request_id):
        return {"num_hashes": self.sequences[request_id].num_tokens // self.block_size if self.is_caching else 0}

    def _get_computed(self, record):
        hits = self.hits[record["id"]] = self.tables.match(self.sequences[record["id"]])
        return {"blocks": hits, "n": len(hits) * self.block_size}

    def _allocate(self, record):
        sequence = self.sequences[record["id"]]
        hits = self.hits[record["id"]] if record["n_computed"] else []
        assert len(hits) * self.block_size == record["n_computed"]
        taken = self.tables.allocate(sequence, record["n_new"], hits)
        is_ok = taken is not None
        # The recorder counts a hit when it was allocated, but a full hit already when it was tried.
        is_full_hit = bool(hits) and len(hits) == (sequence.num_tokens - 1) // self.block_size
        self.counts.update(fail=not is_ok, hit=is_ok and bool(hits), full=is_full_hit)
        if not is_ok:
            return {"ok": False}
        sequence.num_computed_tokens += record["n_computed"] + record["n_new"]
        return {"ok": True, "new_blocks": taken, "all_blocks": self.tables.block_ids(record["id"])}

    def _free(self, record):
        self.tables.release(record["id"])
        return {}

    def _preempt(self, record):
        self.tables.release(record["id"])
        self.sequences[record["id"]].num_computed_tokens = 0
        return {}

    def _reset_prefix_cache(self, record):
        return {"ok": self.pool.reset()}


@pytest.mark.parametrize("path", recording_params("vllm_kvmgr_*"))
def test_tables_equal_recording(path):
    TablesReplay(path).run()


# -- is the comparison sharp, and does check_integrity() see anything?


# No recording has a lone request above the threshold, or a watermark; the tests further below stand in for them.
RULES_NOT_RECORDED = {"lone_request_ignores_threshold", "has_watermark"}


@pytest.mark.parametrize("version", RULES)
@pytest.mark.parametrize("rule", sorted({f.name for f in fields(VLLM_0_19)} - RULES_NOT_RECORDED))
def test_recordings_notice_a_flipped_rule(rule, version):
    paths = [p for p in chosen_recordings("vllm_sched_*") if load(p)[0]["version"] == version]
    flipped = replace(RULES[version], **{rule: not getattr(RULES[version], rule)})
    for path in paths:
        try:
            SchedulerReplay(path, flipped).run()
        except Mismatch:
            return
    pytest.fail(f"all {version} recordings pass with {rule} flipped")


def lose_a_reference(pool):
    pool.num_refs[pool.num_blocks - 1] += 1


def free_a_used_block(pool):
    pool.free_queue[1] = None


def leak_a_block(pool):
    pool.free_queue.popitem()


def forget_an_owner(pool):
    pool.copies_of.pop(next(iter(pool.copies_of)))


def cache_the_null_block(pool):
    pool.register(0, 12345)


@pytest.mark.parametrize(
    "damage", [lose_a_reference, free_a_used_block, leak_a_block, forget_an_owner, cache_the_null_block]
)
def test_check_integrity_sees(damage):
    tables = BlockTables(BlockPool(8, True), block_size=4, max_model_len=64, enable_caching=True)
    sequence = TokenSequence("a", tables.new_content(None, ["x", "y"]), 10)
    assert tables.allocate(sequence, 10) == [1, 2, 3]
    tables.check_integrity()
    damage(tables.pool)
    with pytest.raises(IntegrityError):
        tables.check_integrity()


@pytest.mark.parametrize(("rules", "expected"), [(VLLM_0_19, [8, 8, 8]), (VLLM_0_33, [30, 8, 8])])
def test_threshold_and_a_lone_request(rules, expected):
    config = SchedulerConfig(
        block_size=4,
        num_blocks=99,
        max_num_seqs=4,
        max_num_batched_tokens=30,
        max_model_len=200,
        enable_prefix_caching=False,
        long_prefill_token_threshold=8,
    )
    scheduler = VllmScheduler(config, rules)
    scheduler.add(new_request("a", 100, 1))
    planned = [scheduler.schedule().rows["a"].num_tokens]
    scheduler.add(new_request("b", 100, 1))  # from now on the threshold counts in both versions
    plan = scheduler.schedule()
    assert [*planned, plan.rows["a"].num_tokens, plan.rows["b"].num_tokens] == expected


def test_watermark_binds_from_the_second_request_on():
    config = SchedulerConfig(
        block_size=4,
        num_blocks=11,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=32,
        enable_prefix_caching=False,
        watermark=0.2,
    )
    scheduler = VllmScheduler(config, VLLM_0_33)
    for request_id, num_prompt_tokens in (("a", 20), ("b", 13), ("c", 1)):
        scheduler.add(new_request(request_id, num_prompt_tokens, 2))
    # a takes 5 of 10; b would take 4 and leave 1 < int(0.2 * 11); c waits behind b.
    assert scheduler.schedule().new == ["a"]


def test_abort_between_schedule_and_update():
    config = SchedulerConfig(block_size=4, num_blocks=11, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=32)
    scheduler = VllmScheduler(config, VLLM_0_33)
    scheduler.add(new_request("a", 9, 2, ["x", "y"]))
    plan = scheduler.schedule()
    assert scheduler.abort("a")
    assert not scheduler.abort("a")
    assert scheduler.update(plan).emitted == []
    assert scheduler.num_unfinished == 0
    assert scheduler.pool.num_free == 10
    scheduler.check_integrity()


# No recording stops at max_model_len or aborts a request that has run.


def test_max_model_len_stops():
    config = SchedulerConfig(
        block_size=4,
        num_blocks=11,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=12,
        enable_prefix_caching=False,
    )
    scheduler = VllmScheduler(config, VLLM_0_33)
    scheduler.add(new_request("a", 10, 50))
    results = [scheduler.update(scheduler.schedule()) for _ in range(2)]
    assert [result.finished for result in results] == [[], [("a", "length")]]


def test_abort_of_running_and_preempted():
    config = SchedulerConfig(
        block_size=4,
        num_blocks=6,
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=20,
        enable_prefix_caching=False,
    )
    scheduler = VllmScheduler(config, VLLM_0_33)
    for request_id in "ab":
        scheduler.add(new_request(request_id, 8, 9))
    plans = []
    while not (plans and plans[-1].preempted):  # five blocks: one request can grow, two cannot
        plans.append(scheduler.schedule())
        scheduler.update(plans[-1])
    assert plans[-1].preempted == ["b"]
    for request_id in "ba":
        assert scheduler.abort(request_id)
        scheduler.check_integrity()
    assert scheduler.pool.num_free == 5
    assert not scheduler.running
    assert not scheduler.waiting
