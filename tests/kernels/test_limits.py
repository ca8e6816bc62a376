"""The probes do the work that they are said to do, with any number of threads; and how threads share work."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest

from kvbench.core.errors import UsageError
from kvbench.core.jit import PLAIN
from kvbench.kernels import limits
from kvbench.kernels.threads import check_threads, share


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_copies_copy(threads):
    source = np.arange(1001)
    target = np.zeros_like(source)
    limits.copy(target, source, threads)
    assert np.array_equal(target, source)
    rows = np.random.default_rng(0).integers(0, 256, (10, 777), np.uint8)
    half = rows[:5].copy()
    limits.stream_copy(rows, threads)
    assert np.array_equal(rows, np.concatenate([half, half]))


def test_reading_reads_everything(monkeypatch):
    seen = []
    monkeypatch.setattr(limits, "_sum", lambda part: seen.append(part.copy()))
    limits.read(np.arange(1000), 3)
    assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(1000))


@pytest.mark.skipif(PLAIN, reason="plain Python has no such units")
def test_multiplying_counts_its_operations():
    assert limits.multiply_add(10, 2) == 10 * 2 * limits.CHAINS * limits.LANES * 2


def test_a_product_is_one_whatever_the_threads():
    a = np.random.default_rng(1).standard_normal((20, 20), np.float32)
    out = np.empty_like(a)
    limit_to = limits.blas_threads()
    if limit_to is None:
        limits.product(a, a, out)
    else:
        with limit_to(1):
            limits.product(a, a, out)
    assert np.allclose(out, a @ a)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("total", [0, 1, 2, 7])
def test_every_item_is_done_once(total, threads):
    pieces = []
    share(total, threads, lambda start, stop: pieces.append((start, stop)))
    assert sorted(i for start, stop in pieces for i in range(start, stop)) == list(range(total))
    assert len(pieces) <= max(threads, 1)


def test_pieces_run_at_the_same_time():
    barrier = threading.Barrier(2, timeout=20)
    share(2, 2, lambda start, stop: barrier.wait())


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_in_a_piece_is_raised(failing):
    def run(start: int, stop: int) -> None:
        if start == failing:
            raise ValueError("as planned")

    with pytest.raises(ValueError, match="as planned"):
        share(2, 2, run)


def test_no_more_threads_than_processors():
    assert check_threads(1) == 1
    for threads in (0, 100_000):
        with pytest.raises(UsageError, match="processors"):
            check_threads(threads)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own():
    """Its parent's pool is there and has no threads: waiting for them would take for ever."""
    share(2, 2, lambda start, stop: None)
    child = os.fork()
    if child == 0:
        done: list[int] = []
        share(2, 2, lambda start, stop: done.append(start))
        os._exit(0 if sorted(done) == [0, 1] else 1)
    assert os.waitpid(child, 0)[1] == 0
