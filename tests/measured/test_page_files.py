"""Pages as files: what is read is what was written, or it is no page."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.measured.page_files import BrokenPage, PageFiles

SIZE = 96


def page(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, SIZE, np.uint8)


def test_what_was_written_is_read(tmp_path):
    files = PageFiles(tmp_path, SIZE)
    for slot, content, seed in ((1, 7, 0), (2, -9, 1), (1, 11, 2)):
        files.write(slot, content, page(seed))
    assert np.array_equal(files.read(1, 11), page(2))
    assert np.array_equal(files.read(2, -9), page(1))
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(BrokenPage, match="its head is that of another page"):
        files.read(1, 7)  # its slot has another one by now
    with pytest.raises(BrokenPage, match="No such file"):
        files.read(3, 7)


def test_any_other_byte_is_noticed(tmp_path):
    files = PageFiles(tmp_path, SIZE)

    @settings(max_examples=60, deadline=None)
    @given(st.data())
    def check(data):
        files.write(1, 5, page(3))
        raw = bytearray(files.path(1).read_bytes())
        if data.draw(st.booleans()):
            del raw[data.draw(st.integers(0, len(raw) - 1)) :]
        else:
            at = data.draw(st.integers(0, len(raw) - 1).filter(lambda i: not 28 <= i < 32))  # padding of the head
            raw[at] ^= data.draw(st.integers(1, 255))
        files.path(1).write_bytes(bytes(raw))
        with pytest.raises(BrokenPage, match=r"page-00000001\.kv: "):
            files.read(1, 5)

    check()
