"""What prompts have in common: layers, documents, scans, forks, calls that join, answers that come back changed."""

from __future__ import annotations

import tomllib
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvbench.core.errors import UsageError
from kvbench.core.requests import NONE, Requests
from kvbench.workload.build import build_workload
from kvbench.workload.keys import NAMESPACE_PARTS
from kvbench.workload.pieces import Pieces, prompts, side_by_side, single


def built(text="", **top):
    return build_workload({**tomllib.loads(text), **top})[0]


def prompt(requests, i):
    own = slice(requests.segment_offset[i], requests.segment_offset[i + 1])
    columns = (requests.segment_stream, requests.segment_start, requests.segment_length)
    return list(zip(*(column[own].tolist() for column in columns), strict=True))


# ------------------------------------------------------------------ pieces

ragged = st.lists(st.lists(st.integers(1, 9), max_size=3), min_size=6, max_size=6)


def pieces_of(rows, stream):
    lengths = np.array([n for row in rows for n in row], np.int64)
    runs = np.stack([np.full(lengths.size, stream), np.arange(lengths.size), lengths])
    return Pieces(np.cumsum([0, *map(len, rows)]), runs)


def listed(pieces):
    return [list(map(tuple, pieces.runs[:, a:b].T.tolist())) for a, b in pairwise(pieces.offset.tolist())]


@given(first=ragged, second=ragged, parents=st.lists(st.integers(-1, 5), min_size=6, max_size=6))
@settings(max_examples=80)
def test_prompts_are_what_was_said_and_the_own_text(first, second, parents):
    answer, own = pieces_of(first, 1), pieces_of(second, 2)
    parent = [min(p, i - 1) for i, p in enumerate(parents)]
    expected = []
    for i, p in enumerate(parent):
        before = [] if p < 0 else expected[p] + listed(answer)[p]
        expected.append(before + listed(own)[i])
    assert listed(prompts(np.array(parent), answer, own)) == expected
    assert listed(side_by_side(answer, own)) == [a + b for a, b in zip(listed(answer), listed(own), strict=True)]


def test_a_piece_of_no_length_is_none():
    assert listed(single(np.array([5, 6]), np.array([3, 0]), np.array([1, 1]))) == [[(5, 1, 3)], []]


# ------------------------------------------------------------------ layers and documents


def test_layers_stand_in_order_before_the_first_text_only():
    text = """
    sharing = {system = 10, tools = 20, tool_sets = 2, few_shot = 30, few_shot_sets = 3, groups = 4, prefix = 40}
    lengths = {prompt = 5, output = 5}
    sessions.turns = 2
    """
    requests = built(text, num_prompts=400)
    found = [prompt(requests, i) for i in range(400)]
    assert all([length for _, _, length in p[:5]] == [10, 20, 30, 40, 5] for p in found)
    assert [len({p[k][0] for p in found}) for k in range(4)] == [1, 2, 3, 4]
    assert len({tuple(p[k][0] for k in range(4)) for p in found}) == 24  # chosen apart
    for a, b in zip(found[::2], found[1::2], strict=True):
        assert b[:5] == a[:5]


def test_a_set_has_one_length():
    text = "sharing = {tools = {distribution='uniform', min=10, max=900}, tool_sets = 20, zipf = 0.5}"
    requests = built(text, num_prompts=2000)
    first = requests.segment_offset[:-1]
    pairs = set(zip(requests.segment_stream[first].tolist(), requests.segment_length[first].tolist(), strict=True))
    assert len(pairs) == 20


DOCUMENTS = """
documents = {count = 9, per_request = {distribution='uniform', min=0, max=5}, tokens = 7, zipf = %s, order = '%s'}
lengths.prompt = 3
"""


def documents(requests):
    """Ranks of the documents of each prompt."""
    lowest = requests.segment_stream[requests.segment_length == 7].min()
    return [[stream - lowest for stream, _, length in prompt(requests, i) if length == 7] for i in range(len(requests))]


def test_documents_are_different_ones_by_their_popularity():
    found = documents(built(DOCUMENTS % (1.0, "drawn"), num_prompts=3000))
    assert all(len(set(ranks)) == len(ranks) for ranks in found)
    assert np.bincount([len(ranks) for ranks in found]) / 3000 == pytest.approx([1 / 6] * 6, abs=0.03)
    first = np.bincount([ranks[0] for ranks in found if ranks])
    assert first / first.sum() == pytest.approx(np.arange(1, 10) ** -1.0 / (np.arange(1, 10) ** -1.0).sum(), abs=0.03)


def test_ranked_documents_are_the_same_ones_in_order():
    drawn, ranked = (documents(built(DOCUMENTS % (0.8, order), num_prompts=300)) for order in ("drawn", "ranked"))
    assert [sorted(ranks) for ranks in drawn] == ranked != drawn


def test_as_many_documents_as_there_are():
    found = documents(built("documents = {count = 4, per_request = 9, tokens = 7, zipf = 5}\nlengths.prompt = 3"))
    assert {tuple(sorted(ranks)) for ranks in found} == {(0, 1, 2, 3)}


def test_each_turn_brings_documents():
    text = (
        "documents = {count = 50, per_request = 2, tokens = 7}\nlengths = {prompt = 3, output = 4}\nsessions.turns = 2"
    )
    requests = built(text, num_prompts=2)
    assert [length for _, _, length in prompt(requests, 1)] == [7, 7, 3, 4, 7, 7, 3]


def test_scans_share_nothing():
    text = """
    sharing = {groups = 2, scan_share = 0.3, scan = {distribution='uniform', min=5000, max=6000}}
    documents.count = 3
    sessions.turns = 3
    """
    requests = built(text, num_prompts=3000)
    pieces = np.diff(requests.segment_offset)
    scans = np.flatnonzero((pieces == 1) & (requests.prompt_tokens >= 5000))
    sessions = np.unique(requests.session_id).size
    assert scans.size / sessions == pytest.approx(0.3, abs=0.04)
    streams = requests.segment_stream[requests.segment_offset[scans]]
    assert np.isin(requests.segment_stream, streams).sum() == scans.size
    assert (np.bincount(requests.session_id)[requests.session_id[scans]] == 1).all()


# ------------------------------------------------------------------ sessions that are no chains


def test_forks_go_on_from_an_earlier_turn():
    text = "sessions = {turns = 6, fork_share = 0.5}\nlengths = {prompt = 3, output = 4}"
    requests = built(text, num_prompts=6000)
    later = requests.turn >= 2
    forked = later & (requests.after != np.arange(6000) - 1)
    assert forked.sum() / later.sum() == pytest.approx(0.5, abs=0.03)
    assert (requests.session_id[requests.after[forked]] == requests.session_id[forked]).all()
    for i in np.flatnonzero(forked)[:50]:
        before = int(requests.after[i])
        answer = (int(requests.output_stream[before]), 0, 4)
        assert prompt(requests, i)[:-1] == [*prompt(requests, before), answer]


def test_calls_share_what_was_said_and_join():
    text = """
    sessions = {turns = 3, think_s = 2}
    agents = {calls = {distribution='uniform', min=0, max=3}, prompt = 20, output = 30}
    lengths = {prompt = 3, output = 4, thinking = 5}
    sharing.system = 100
    """
    requests = built(text, num_prompts=500)
    assert requests.joins is not None
    is_call = requests.segment_length[requests.segment_offset[1:] - 1] == 20
    turns = np.flatnonzero(~is_call)
    for turn, following in pairwise(turns):
        calls = list(range(turn + 1, following))
        said = [*prompt(requests, turn), (int(requests.output_stream[turn]), 5, 4)]
        for call in calls:
            assert prompt(requests, call)[:-1] == said
            assert (requests.after[call], requests.think_ns[call]) == (turn, 0)
            assert requests.joins[call] == (NONE if call == calls[0] else calls[0])
        if requests.session_id[following] == requests.session_id[turn]:
            answers = [(int(requests.output_stream[call]), 0, 30) for call in calls]
            assert prompt(requests, following)[:-1] == said + answers
            assert requests.after[following] == (calls[0] if calls else turn)
            assert requests.think_ns[following] == 2e9
    whole = np.bincount(requests.session_id)[:-1]
    assert whole.min() == 3
    assert whole.max() == 9
    assert requests.turn[-1] == np.count_nonzero(requests.session_id == requests.session_id[-1]) - 1


def test_thinking_is_generated_and_left_out_of_later_turns():
    requests = built("lengths = {prompt = 3, output = 4, thinking = 50}\nsessions.turns = 2", num_prompts=2)
    assert requests.output_tokens.tolist() == [54, 54]
    assert requests.max_tokens.tolist() == [54, 54]
    assert prompt(requests, 1)[1] == (int(requests.output_stream[0]), 50, 4)
    cut = built("lengths = {prompt=3, output=4, thinking=50, max_tokens=20}\nsessions.turns = 2", num_prompts=2)
    assert [length for _, _, length in prompt(cut, 1)] == [3, 3]  # it never came to an answer


def test_an_answer_that_is_tokenised_again_changes_from_a_point_on_and_for_good():
    text = "lengths = {prompt = 3, output = 100}\nsessions = {turns = 3, retokenised = 0.4}"
    requests = built(text, num_prompts=3000)
    second = np.flatnonzero(requests.turn == 1)
    changed = []
    for i in second:
        pieces = prompt(requests, i)[1:-1]
        assert sum(length for _, _, length in pieces) == 100
        if pieces != [(int(requests.output_stream[i - 1]), 0, 100)]:
            changed.append(100 - pieces[-1][2])
            assert pieces[-1][0] != requests.output_stream[i - 1]
        assert prompt(requests, i + 1)[: len(pieces) + 2] == prompt(requests, i)
    assert len(changed) / second.size == pytest.approx(0.4, abs=0.05)
    assert np.mean(changed) == pytest.approx(49.5, abs=4)


# ------------------------------------------------------------------ namespaces and flushes


@pytest.mark.parametrize("part", NAMESPACE_PARTS)
def test_each_part_alone_makes_namespaces(part):
    requests = built(f"namespace.{part} = ['', 'a', 'b']\nsharing.groups = 1", num_prompts=3000)
    assert requests.namespaces == ("", f"{part}=a", f"{part}=b")
    assert np.bincount(requests.namespace) / 3000 == pytest.approx([1 / 3] * 3, abs=0.04)


def test_parts_are_drawn_apart_and_named_together():
    text = "namespace = {model = 'm', adapter = ['', 'sql'], salt = ['x', 'y']}\nsharing.namespaces = 2"
    requests = built(text, num_prompts=4000)
    assert requests.namespaces[:2] == ("namespace-0/model=m/salt=x", "namespace-0/model=m/salt=y")
    assert len(requests.namespaces) == 8
    assert np.bincount(requests.namespace) / 4000 == pytest.approx([1 / 8] * 8, abs=0.02)


def test_phases_name_namespaces_apart():
    text = "num_prompts = 5\nnamespace.model = 'v1'\n[[phase]]\n[[phase]]\nnamespace.model = 'v2'\n[[phase]]"
    requests = built(text)
    assert requests.namespaces == ("model=v1", "model=v2")
    assert requests.namespace.tolist() == [0] * 5 + [1] * 5 + [0] * 5


def test_flushes_name_what_they_empty():
    text = """
    namespace = {model = ["a", "b"], adapter = ["", "sql"]}
    flush = [{at_s = 9.5, model = "b"}, {at_s = 2, adapter = "sql"}, {at_s = 3}]
    """
    requests = built(text)
    names = [requests.namespaces[i] for i in requests.flush_namespace]
    assert requests.flush_ns.tolist() == [2e9] * 2 + [3e9] * 4 + [9.5e9] * 2
    assert names[:2] == ["model=a/adapter=sql", "model=b/adapter=sql"]
    assert names[-2:] == ["model=b", "model=b/adapter=sql"]
    assert requests.fingerprint() != built(text.replace("9.5", "9.6")).fingerprint()


# ------------------------------------------------------------------ seeds

ALL = """
num_prompts = 800
arrivals = {process = 'on-off', rate = 10, on_s = 3}
lengths.prompt = {distribution='lognormal', p50=90, p99=900}
lengths.output = 50
lengths.thinking = {distribution='uniform', min=0, max=40}
sharing = {system = 30, tools = 40, tool_sets = 3, few_shot = 20, few_shot_sets = 2, groups = 5, scan_share = 0.1}
documents = {count = 30, per_request = 2}
namespace.adapter = ['', 'x']
sessions = {turns = 4, fork_share = 0.3, retokenised = 0.3, think_s = {distribution='exponential', mean=2}}
agents.calls = {distribution='uniform', min=0, max=2}
"""


def differing(a, b):
    arrays = [f.name for f in fields(Requests) if isinstance(getattr(a, f.name), np.ndarray)]
    return {name for name in arrays if not np.array_equal(getattr(a, name), getattr(b, name))}


def test_a_workload_of_everything_is_pinned():
    """Draws may never change: published fingerprints would stop to hold."""
    assert built(ALL, seeds={"arrivals": 1, "lengths": 2, "sharing": 3}).fingerprint()[:16] == "4f591db60ee9f921"


def test_the_seed_of_arrivals_moves_nothing_but_times():
    assert differing(built(ALL), built(ALL, seeds={"arrivals": 9})) == {"arrival_ns"}


def test_the_seed_of_sharing_leaves_lengths_alone_where_sessions_are_whole():
    text = ALL.replace("scan_share = 0.1", "scan_share = 0")
    changed = differing(built(text), built(text, seeds={"sharing": 9}))
    assert changed.isdisjoint({"output_tokens", "max_tokens", "think_ns", "arrival_ns", "session_id", "joins"})
    assert {"segment_stream", "namespace"} <= changed


def test_the_seed_of_lengths_leaves_sets_and_namespaces_alone():
    text = ALL.replace("agents.calls = {distribution='uniform', min=0, max=2}", "")
    one, other = built(text), built(text, seeds={"lengths": 9})
    assert differing(one, other).isdisjoint({"namespace", "tenant", "after", "session_id"})
    openers = np.flatnonzero(one.turn == 0)
    for i in openers[:40]:
        assert prompt(one, i)[:4] == prompt(other, i)[:4] or len(prompt(one, i)) == 1


def test_more_requests_begin_with_the_same():
    few, many = built(ALL), built(ALL.replace("800", "1100"))
    whole = 700  # the last session of the smaller one is cut
    assert few.prompt_tokens[:whole].tolist() == many.prompt_tokens[:whole].tolist()
    assert few.namespace[:whole].tolist() == many.namespace[:whole].tolist()


WRONG = {
    "names twice": ("namespace.salt = ['a', 'a']", "namespace.salt names 'a' twice"),
    "no names": ("namespace.salt = []", "namespace.salt is a string or a list of strings"),
    "a number": ("namespace.salt = 3", "namespace.salt is a string or a list of strings"),
    "share": ("sharing.scan_share = 1.5", "sharing.scan_share must be at most 1"),
    "order": ("documents.order = 'random'", "documents.order is one of ranked, drawn"),
    "flush when": ("flush = [{model = 'a'}]", "flush[0].at_s must be a number of seconds"),
    "flush what": ("flush = [{at_s = 1, modl = 'a'}]", "flush[0]: a flush has no 'modl'"),
    "flush nobody": ("flush = [{at_s = 1, model = 'a'}]", "flush[0] empties no namespace of the workload"),
    "flush of a phase": ("[[phase]]\nflush = []", "unknown key flush"),
    "nothing left": ("exclude = true", "leave nothing in the results"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_sharing_is_explained(name):
    text, expected = WRONG[name]
    with pytest.raises(UsageError) as caught:
        built(text)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)
