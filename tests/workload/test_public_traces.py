"""The two public traces read as their documentation says they are."""

from __future__ import annotations

import itertools
import shutil

import numpy as np
import pytest

from kvbench.workload.trace import load_trace

from .files import AZURE_CODE, CONVERSATION, load, public


@pytest.fixture(scope="module")
def conversation():
    return load_trace(public(CONVERSATION))


@pytest.fixture(scope="module")
def azure():
    return load_trace(public(AZURE_CODE))


def test_conversation_is_the_file_we_know(conversation):
    requests, info = conversation
    assert info.sha256.startswith("b8cbb061a85206d7")
    assert (info.format, info.num_rows, info.block_tokens) == ("mooncake", 12_031, 512)
    assert (len(requests), requests.block_hint) == (12_031, 512)


def test_conversation_lengths(conversation):
    requests, _ = conversation
    prompt, output = requests.prompt_tokens, requests.output_tokens
    assert round(prompt.mean()) == 12_035
    assert (prompt.min(), prompt.max(), np.median(prompt)) == (891, 126_195, 6_909)
    assert round(output.mean()) == 343
    assert (output.min(), output.max(), np.count_nonzero(output == 1)) == (1, 2_000, 72)
    assert np.array_equal(requests.max_tokens, output)


def test_conversation_times_are_milliseconds_and_coarse(conversation):
    requests, _ = conversation
    times, counts = np.unique(requests.arrival_ns, return_counts=True)
    assert (times.size, counts.max(), times[0]) == (1_180, 28, 0)
    assert round(times[-1] / 1e9) == 3_537
    assert any("coarse" in note and "3000 ms" in note for note in requests.notes)


def test_conversation_blocks(conversation):
    requests, _ = conversation
    first = requests.segment_stream[requests.segment_offset[:-1]]
    assert np.unique(first).size == 1  # one system prompt leads all
    assert requests.segment_stream.size == 288_500
    assert np.unique(requests.segment_stream).size == 182_790
    assert requests.segment_length.max() == 512
    assert requests.segment_length.sum() == requests.prompt_tokens.sum()
    assert np.intersect1d(requests.segment_stream, requests.output_stream).size == 0


def test_conversation_hit_rate_of_an_unbounded_cache(conversation):
    """Leading blocks seen in an earlier request / all blocks, the last partial ones included."""
    requests, _ = conversation
    seen: set[int] = set()
    hits = 0
    streams, offset = requests.segment_stream.tolist(), requests.segment_offset.tolist()
    for start, end in itertools.pairwise(offset):
        for stream in streams[start:end]:
            if stream not in seen:
                break
            hits += 1
        seen.update(streams[start:end])
    assert round(hits / len(streams), 4) == 0.3664


def test_conversation_with_crlf_is_the_same(conversation, tmp_path):
    requests, info = conversation
    copy = tmp_path / "crlf.jsonl"
    copy.write_bytes(CONVERSATION.read_bytes().replace(b"\n", b"\r\n"))
    again, other = load_trace(copy)
    assert again.fingerprint() == requests.fingerprint()
    assert other.sha256 != info.sha256
    copy.write_bytes(CONVERSATION.read_bytes().rstrip(b"\n"))
    assert load_trace(copy)[0].fingerprint() == requests.fingerprint()


def test_the_content_decides_not_the_name(conversation, azure, tmp_path):
    misnamed = tmp_path / "requests.csv"
    shutil.copy(CONVERSATION, misnamed)
    assert load_trace(misnamed)[0].fingerprint() == conversation[0].fingerprint()
    misnamed = tmp_path / "requests.jsonl"
    shutil.copy(AZURE_CODE, misnamed)
    assert load_trace(misnamed)[0].fingerprint() == azure[0].fingerprint()


def test_first_rows_only(conversation):
    requests, _ = conversation
    some = load(CONVERSATION, num_prompts=1_000)
    assert len(some) == 1_000
    assert np.array_equal(some.prompt_tokens, requests.prompt_tokens[:1_000])
    assert np.array_equal(some.arrival_ns, requests.arrival_ns[:1_000])


def test_azure_known_values(azure):
    requests, info = azure
    assert info.sha256 == "54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6"
    assert (info.format, info.num_rows, info.block_tokens) == ("azure", 8_819, 0)
    assert round(requests.prompt_tokens.mean()) == 2_048
    assert (np.median(requests.prompt_tokens), requests.prompt_tokens.max()) == (1_469, 7_437)
    assert round(requests.output_tokens.mean(), 1) == 27.9
    assert requests.output_tokens.max() == 1_899
    assert round(requests.arrival_ns[-1] / 1e9, 1) == 3_435.9
    gaps = np.diff(requests.arrival_ns)
    assert round(gaps.max() / 1e9) == 217
    assert round(gaps.std() / gaps.mean(), 2) == 13.15
    assert requests.arrival_ns[1] == 52_000_000  # seven digits, read exactly


def test_azure_shares_nothing(azure):
    requests, _ = azure
    streams = np.concatenate((requests.segment_stream, requests.output_stream))
    assert np.unique(streams).size == 2 * len(requests)
    assert requests.notes == ()
