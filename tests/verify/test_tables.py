"""What no recording of the block tables has in it."""

from __future__ import annotations

import pytest

from kvbench.core.errors import UsageError
from kvbench.engine.integrity import check_integrity
from kvbench.verify.recording import Row
from kvbench.verify.vllm_tables import VllmTables

PARAMS = {"num_blocks": 8, "block_size": 4, "enable_prefix_caching": True, "max_model_len": 100}


def rows(path, *operations):
    return [Row({"out": {}, **operation}, path, i) for i, operation in enumerate(operations, 2)]


def tables(path, operations):
    return VllmTables(Row({"version": "0.33.0", "params": Row(PARAMS, path, 1)}, path, 1), operations)


def test_a_reset_forgets_every_prefix_once_nothing_is_in_use(tmp_path):
    reset, look = {"op": "reset_prefix_cache"}, {"op": "get_computed", "id": "b"}
    operations = rows(
        tmp_path,
        {"op": "new", "id": "a", "prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9]},
        {"op": "new", "id": "b", "prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9]},
        {"op": "get_computed", "id": "a"},
        {"op": "allocate", "id": "a", "n_new": 9, "n_computed": 0},
        reset,
        look,
        {"op": "free", "id": "a"},
        look,
        reset,
        look,
        {"op": "allocate", "id": "b", "n_new": 9, "n_computed": 0},
    )
    stream = tables(tmp_path, operations)
    seen = [stream.step(row) for row in operations]
    assert [got["ok"] for got in seen if set(got) - {"new_blocks", "all_blocks"} >= {"ok"}] == [True, False, True, True]
    assert [got["n"] for got in seen if "n" in got] == [0, 8, 8, 0]
    assert [got["cached_hashes"] for got in seen[7:]] == [2, 0, 0, 2]
    assert seen[7]["free_queue"] == seen[8]["free_queue"]  # the order of the queue stays
    assert seen[-1]["evicted"] == []
    check_integrity(stream.engine)


def test_an_allocation_without_its_look_up_is_refused(tmp_path):
    operations = rows(
        tmp_path,
        {"op": "new", "id": "a", "prompt": [1, 2, 3, 4, 5]},
        {"op": "allocate", "id": "a", "n_new": 1, "n_computed": 4},
    )
    stream = tables(tmp_path, operations)
    stream.step(operations[0])
    with pytest.raises(UsageError, match=":3: an allocation has to come right after the look-up"):
        stream.step(operations[1])
