"""`--check` passes as things are, and fails for each kernel that is made wrong."""

from __future__ import annotations

import numpy as np
import pytest

from kvbench.speed import check
from kvbench.speed.check import check_kernels, exact_attention


def quiet(done: int, total: int) -> None:
    """No progress."""


@pytest.fixture
def few_variants(monkeypatch):
    monkeypatch.setattr(check, "HEAD_DIMS", (64,))
    monkeypatch.setattr(check, "LENGTHS", (1, 16, 37))
    monkeypatch.setattr(check, "NEW_TOKENS", (1, 1, 9))


def test_all_variants_pass(few_variants):
    rows = check_kernels(quiet)
    assert {(row.kv_dtype, row.layout) for row in rows} == {
        (kv_dtype, layout) for kv_dtype in ("float32", "bf16", "int8", "int4") for layout in ("NHD", "HND")
    }
    assert all(row.passed for row in rows)
    assert any(row.error > 0 for row in rows)  # else float64 is compared with itself


@pytest.mark.parametrize("kernel", ["write", "gather", "copy_blocks", "paged_decode", "paged_prefill"])
def test_a_wrong_kernel_is_found(few_variants, monkeypatch, kernel):
    right = getattr(check, kernel)
    monkeypatch.setattr(check, "LAYOUTS", ("HND",))

    def wrong(*args, **options):
        if kernel == "paged_decode":  # the last token is forgotten
            args = (*args[:4], np.maximum(args[4] - 1, 1), *args[5:])
        elif kernel == "paged_prefill":  # a row sees the one behind it
            args = (*args[:5], np.maximum(args[5] - 1, 0), *args[6:])
        elif kernel == "copy_blocks":
            args = (args[0], args[1][::2].copy())
        elif kernel == "write":
            args = (args[0], args[0], *args[2:])
        found = right(*args, **options)
        return found[::-1] if kernel == "gather" else found

    monkeypatch.setattr(check, kernel, wrong)
    named = {
        "write": "write, gather",
        "gather": "write, gather",
        "copy_blocks": "copy",
        "paged_decode": "decode",
        "paged_prefill": "prefill",
    }
    failed = {row.kernel for row in check_kernels(quiet) if not row.passed}
    assert named[kernel] in failed


def test_exact_attention_of_one_key_is_its_value():
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 8))
    assert np.array_equal(exact_attention(q, k, v, 0), v)


def test_exact_attention_by_hand():
    """Two rows at positions 1 and 2, heads in pairs, the second with a window of two."""
    rng = np.random.default_rng(1)
    q, k, v = rng.standard_normal((2, 4, 8)), rng.standard_normal((3, 2, 8)), rng.standard_normal((3, 2, 8))
    for window in (0, 2):
        out = exact_attention(q, k, v, 1, window)
        for row, position in ((0, 1), (1, 2)):
            seen = range(max(position + 1 - window, 0) if window else 0, position + 1)
            for head in range(4):
                weights = [np.exp(q[row, head] @ k[t, head // 2] / np.sqrt(8)) for t in seen]
                wanted = sum(w * v[t, head // 2] for w, t in zip(weights, seen, strict=True)) / sum(weights)
                assert np.allclose(out[row, head], wanted)
