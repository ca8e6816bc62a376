"""Cost tables and the one evaluator that reads them: a query in, nanoseconds by resource out.

A step costs: linear part by new tokens, output head by sequences, prefill attention by (new, context) of
each chunk, decode attention by (batch, summed context), communication by new tokens, host time, launches, copies.
Decode attention has two tables: beside a prefill chunk the decodes lose the kernel made for them, and take
1.2 to 4 times as long. Where graphs are captured, a step pays for the tokens that its graph is padded to.
Who fills the tables (datasheet, profile, measured kernels, fit) is unknown here.

Between the points of an axis (see axes.py) interpolation is (bi)linear, beyond the last one the last stretch
goes on. Floats live only here: in a fixed order, without libm, rounded to whole ns once per chunk and
resource, so that the same query gives the same integer on every machine. Nothing is allocated; measured
warm on one core: clear, set_decode and step_ns 34 ns, add_prefill 14 ns more (twice that on a core that is shared).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.errors import UsageError
from ..core.jit import inline, jit, struct
from .axes import F64, I64, Grid, Line
from .graphs import NO_GRAPHS, Graphs

# The query: a float64 array of QUERY_SIZE entries, filled by the verbs below.
(
    NEW_TOKENS,
    NUM_PREFILL,
    PREFILL_ATTENTION_NS,
    DECODE_BATCH,
    DECODE_CONTEXT_SUM,
    DECODE_CONTEXT_MAX,
    NUM_SEQUENCES,
    GRAPH_BUCKET,
    EXPERT_LOAD_MAX,
    ACTIVE_EXPERTS,
    DISPATCH_BYTES,
    EXCHANGE_NS,
    COPY_BYTES,
    OUTSIDE,
) = range(14)
QUERY_SIZE = 14
# NEW_TOKENS            tokens computed in the step, prefill and decode
# NUM_PREFILL           prefill chunks in the step
# PREFILL_ATTENTION_NS  accumulated by add_prefill, whole ns
# DECODE_CONTEXT_SUM    cached tokens that the decoding sequences attend to
# NUM_SEQUENCES         sequences in the step; each computes logits for its last token (both engines do so
#                       even for a chunk that is not the last, and drop them)
# GRAPH_BUCKET          tokens that the step is padded to; 0: as the captured graphs of this engine pad it. Replicas
#                       that step in lockstep are all padded to the widest: whoever steps them sets it (padded_tokens)
# Experts that are spread over ranks, of one rank, summed over the layers; whoever knows their loads sets these. A layer
# takes as long as its products or its weights, whichever is longer:
# EXPERT_LOAD_MAX       tokens of its experts, in layers where products decide
# ACTIVE_EXPERTS        experts that have a token, in layers where reading weights decides; activations count as parts
# DISPATCH_BYTES        sent or received, whichever is more, by dispatch and combine over the slowest link
# EXCHANGE_NS           fixed time of dispatch and combine
# COPY_BYTES            bytes copied within the device before the step (a shared block that is written)
# OUTSIDE               1 after step_ns when a look-up lay beyond what was measured

# The result: an int64 array of NUM_RESOURCES entries; its sum is the step.
LINEAR, PREFILL_ATTENTION, DECODE_ATTENTION, COMMUNICATION, HOST, COPY, LAUNCH = range(7)
NUM_RESOURCES = 7

UNREAD = ("decode_context_max",)
"""Dimensions of the query that no table here has: uneven contexts."""

LIMIT_NAMES = ("tokens", "sequences", "chunk", "chunk_context", "batch", "context")
"""What a table was measured up to: fields limit_<name> of CostTables."""
NO_LIMITS = (np.inf,) * len(LIMIT_NAMES)
"""Of formulas: they hold everywhere."""

ALONE, BESIDE_PREFILL = 0, 1
"""First axis of the decode tables."""


@struct
class CostTables:
    """The tables of one device, model and parallelism, in ns. *_bits: of the axis, see axes.py.

    linear_ns, comm_ns    (points,) by new tokens
    head_ns               (points,) by sequences
    prefill_*_ns          (new points, context + 1 points) of one chunk: the larger of the two
    decode_*_ns           (2, batch points, context sum points) of all decoding sequences, alone and beside a
                          prefill chunk: the larger of the two
    graph_sizes           (n + 1,) tokens that a step of so many tokens is padded to; of more: not padded
    graph_mixed           a step with a prefill chunk is padded too
    host_step_ns          host time of a step
    host_sequence_ns      host time of a step per sequence
    copy_ns_per_byte      copies within the device
    prefill_step_ns       once per step that has prefill chunks: their attention is one kernel, whose floor the table of
                          a single chunk leaves out
    expert_token_ns       products of one token with one expert
    expert_read_ns        weights of one expert of one layer
    dispatch_ns_per_byte  over the slowest link
    launch_ns             gaps between the kernels of a step, on the device
    floor_ns              no step keeps the device for less: its launches take as long
    mixed_floor_ns        of a captured step with a prefill chunk
    eager_floor_ns        of a step that no graph covers
    limit_*               counts up to which the source of the tables has points, see LIMIT_NAMES; inf = all
    """

    linear_ns: "f8[::1]"
    linear_bits: "i8"
    comm_ns: "f8[::1]"
    comm_bits: "i8"
    head_ns: "f8[::1]"
    head_bits: "i8"
    prefill_compute_ns: "f8[:,::1]"
    prefill_memory_ns: "f8[:,::1]"
    prefill_new_bits: "i8"
    prefill_context_bits: "i8"
    decode_compute_ns: "f8[:,:,::1]"
    decode_memory_ns: "f8[:,:,::1]"
    decode_batch_bits: "i8"
    decode_context_bits: "i8"
    graph_sizes: "i8[::1]"
    graph_mixed: "b1"
    host_step_ns: "f8"
    host_sequence_ns: "f8"
    copy_ns_per_byte: "f8"
    prefill_step_ns: "f8"
    expert_token_ns: "f8"
    expert_read_ns: "f8"
    dispatch_ns_per_byte: "f8"
    launch_ns: "f8"
    floor_ns: "f8"
    mixed_floor_ns: "f8"
    eager_floor_ns: "f8"
    limit_tokens: "f8"
    limit_sequences: "f8"
    limit_chunk: "f8"
    limit_chunk_context: "f8"
    limit_batch: "f8"
    limit_context: "f8"


@dataclass(frozen=True)
class Overheads:
    """Times that are not tables, in ns; see CostTables."""

    step_ns: float
    sequence_ns: float
    copy_ns_per_byte: float
    prefill_step_ns: float = 0.0
    launch_ns: float = 0.0
    floor_ns: float = 0.0


@dataclass(frozen=True)
class ExpertTimes:
    """Times of experts that are spread over ranks, in ns; see CostTables. 0: they are in the linear part."""

    token_ns: float = 0.0
    read_ns: float = 0.0
    dispatch_ns_per_byte: float = 0.0


NO_EXPERTS = ExpertTimes()


def build_tables(
    linear: Line,
    communication: Line,
    head: Line,
    prefill: Grid,
    decode: Grid,
    overheads: Overheads,
    mixed: Grid | None = None,
    graphs: Graphs = NO_GRAPHS,
    limits: tuple[float, ...] = NO_LIMITS,
    experts: ExpertTimes = NO_EXPERTS,
) -> CostTables:
    """Tables from sampled costs, checked. Raises UsageError that names the table and what is wrong with it.

    prefill's columns are sampled at context + 1, so that an axis from 1 on holds a context of 0.
    mixed  decode beside a prefill chunk, on the axes of decode; None: the same as alone
    """
    mixed = mixed or decode
    for name, line in (("linear", linear), ("communication", communication), ("head", head)):
        _check(name, line.ns, 1)
    for name, grid in (("prefill", prefill), ("decode", decode), ("mixed", mixed)):
        _check(name, grid.compute_ns, 2)
        _check(name, grid.memory_ns, 2)
        if grid.compute_ns.shape != grid.memory_ns.shape:
            raise UsageError(f"cost table {name!r}: its two bounds have different shapes")
    if (mixed.compute_ns.shape, mixed.row_bits, mixed.column_bits) != (
        decode.compute_ns.shape,
        decode.row_bits,
        decode.column_bits,
    ):
        raise UsageError("cost table 'mixed': its axes are not those of 'decode'")
    return CostTables(
        *(linear.ns, linear.bits, communication.ns, communication.bits, head.ns, head.bits),
        *(prefill.compute_ns, prefill.memory_ns, prefill.row_bits, prefill.column_bits),
        np.stack([decode.compute_ns, mixed.compute_ns]),
        np.stack([decode.memory_ns, mixed.memory_ns]),
        *(decode.row_bits, decode.column_bits),
        *(padding(graphs), graphs.mixed),
        *(overheads.step_ns, overheads.sequence_ns, overheads.copy_ns_per_byte),
        overheads.prefill_step_ns,
        *(experts.token_ns, experts.read_ns, experts.dispatch_ns_per_byte),
        *(overheads.launch_ns, *_floors(overheads.floor_ns, graphs), *limits),
    )


def padding(graphs: Graphs) -> I64:
    """(largest + 1,) tokens -> padded tokens."""
    sizes = np.array((0, *graphs.sizes), np.int64)
    return sizes[np.searchsorted(sizes, np.arange(sizes[-1] + 1))]


def _floors(floor_ns: float, graphs: Graphs) -> tuple[float, float, float]:
    """Of decodes in a graph, of a step with a chunk in one, of a step in none."""
    if not graphs.named:
        return floor_ns, floor_ns, floor_ns
    return graphs.decode_floor_ns, graphs.mixed_floor_ns, graphs.eager_floor_ns


def _check(name: str, ns: F64, dimensions: int) -> None:
    if ns.ndim != dimensions or min(ns.shape) < 2:
        raise UsageError(f"cost table {name!r}: needs two or more points on each of {dimensions} axes")
    if not np.all(np.isfinite(ns)) or np.any(ns < 0):
        raise UsageError(f"cost table {name!r}: times must be finite and not negative")


# ---------------------------------------------------------------- the query


@jit
def clear(query):
    """Empty the query for a new step."""
    query[:] = 0.0


@jit
def add_prefill(tables, query, new_tokens, context):
    """Add one prefill chunk: new_tokens computed on top of `context` tokens that are already there.

    The chunk's attention is rounded to whole ns here, so that the order of chunks does not matter.
    """
    query[NEW_TOKENS] += new_tokens
    query[NUM_PREFILL] += 1.0
    query[NUM_SEQUENCES] += 1.0
    if new_tokens > tables.limit_chunk or context > tables.limit_chunk_context:
        query[OUTSIDE] = 1.0
    compute, memory = tables.prefill_compute_ns, tables.prefill_memory_ns
    row, down = _place(np.float64(new_tokens), tables.prefill_new_bits, compute.shape[0])
    column, along = _place(np.float64(context) + 1.0, tables.prefill_context_bits, compute.shape[1])
    query[PREFILL_ATTENTION_NS] += _whole(
        max(_on_grid(compute, row, down, column, along), _on_grid(memory, row, down, column, along))
    )


@jit
def set_decode(query, batch, context_sum, context_max):
    """Set the decoding part: `batch` sequences, one new token each. May be called again to replace it."""
    query[NEW_TOKENS] += batch - query[DECODE_BATCH]
    query[NUM_SEQUENCES] += batch - query[DECODE_BATCH]
    query[DECODE_BATCH] = batch
    query[DECODE_CONTEXT_SUM] = context_sum
    query[DECODE_CONTEXT_MAX] = context_max


@inline
def padded_tokens(tables, query):
    """Tokens that the captured graphs pad this step to; its own where no graph covers it."""
    tokens = query[NEW_TOKENS]
    return np.float64(tables.graph_sizes[np.int64(tokens)]) if _is_covered(tables, query, tokens) else tokens


@inline
def _is_covered(tables, query, tokens):
    """A captured graph runs a step of so many tokens, padded or not."""
    return tokens < tables.graph_sizes.size and (query[NUM_PREFILL] == 0.0 or tables.graph_mixed)


@inline
def _floor_ns(tables, query, tokens):
    """No such step keeps the device for less."""
    if not _is_covered(tables, query, tokens):
        return tables.eager_floor_ns
    return tables.mixed_floor_ns if query[NUM_PREFILL] > 0.0 else tables.floor_ns


@jit
def step_ns(tables, query, resources):
    """Nanoseconds of the step that the query describes.

    resources  (NUM_RESOURCES,) int64, overwritten
    returns    int64, exactly the sum of resources; a step without tokens costs its copies alone
    """
    linear = communication = decode = host = launch = 0
    sequences, batch, context = query[NUM_SEQUENCES], query[DECODE_BATCH], query[DECODE_CONTEXT_SUM]
    if batch > 0.0:
        kind = BESIDE_PREFILL if query[NUM_PREFILL] > 0.0 else ALONE
        compute, memory = tables.decode_compute_ns, tables.decode_memory_ns
        row, down = _place(batch, tables.decode_batch_bits, compute.shape[1])
        column, along = _place(context, tables.decode_context_bits, compute.shape[2])
        decode = _whole(
            max(_of_kind(compute, kind, row, down, column, along), _of_kind(memory, kind, row, down, column, along))
        )
        if batch > tables.limit_batch or context > batch * tables.limit_context:
            query[OUTSIDE] = 1.0
    once = tables.prefill_step_ns if query[NUM_PREFILL] > 0.0 else 0.0
    prefill = _whole(query[PREFILL_ATTENTION_NS] + once)
    copy = _whole(tables.copy_ns_per_byte * query[COPY_BYTES])
    if query[NEW_TOKENS] > 0.0:
        tokens = query[GRAPH_BUCKET] if query[GRAPH_BUCKET] > 0.0 else padded_tokens(tables, query)
        head = _on_line(tables.head_ns, tables.head_bits, sequences)
        linear = _whole(_on_line(tables.linear_ns, tables.linear_bits, tokens) + head)
        communication = _whole(_on_line(tables.comm_ns, tables.comm_bits, tokens))
        if tables.expert_token_ns > 0.0:
            linear += experts_ns(tables, query)
            communication += exchange_ns(tables, query)
        host = _whole(tables.host_step_ns + tables.host_sequence_ns * sequences)
        busy = linear + prefill + decode + communication
        launch = _whole(tables.launch_ns)
        if max(tables.floor_ns, tables.mixed_floor_ns, tables.eager_floor_ns) > busy:
            launch = max(launch, _whole(_floor_ns(tables, query, tokens)) - busy)
        if tokens > tables.limit_tokens or sequences > tables.limit_sequences:
            query[OUTSIDE] = 1.0
    resources[LINEAR] = linear
    resources[PREFILL_ATTENTION] = prefill
    resources[DECODE_ATTENTION] = decode
    resources[COMMUNICATION] = communication
    resources[HOST] = host
    resources[COPY] = copy
    resources[LAUNCH] = launch
    return linear + prefill + decode + communication + host + copy + launch


@jit
def experts_ns(tables, query):
    """Whole ns of a rank's own experts, all layers."""
    products = tables.expert_token_ns * query[EXPERT_LOAD_MAX]
    return _whole(products + tables.expert_read_ns * query[ACTIVE_EXPERTS])


@jit
def exchange_ns(tables, query):
    """Whole ns of a rank's dispatch and combine, all layers."""
    return _whole(tables.dispatch_ns_per_byte * query[DISPATCH_BYTES] + query[EXCHANGE_NS])


# ---------------------------------------------------------------- interpolation


@jit
def _whole(ns):
    """To whole ns, half up; never below 0 (an extrapolated line may be)."""
    return np.int64(max(ns, 0.0) + 0.5)


@jit
def _place(count, bits, points):
    """Where a count lies on an axis: the point before it and the part of the way to the next.

    Beyond the last point the part exceeds 1; a count below 1 is taken as 1.
    """
    pattern = np.float64(max(count, 1.0)).view(np.int64)
    shift = 52 - bits
    point = (pattern >> shift) - (1023 << bits)
    if point < points - 1:
        rest = pattern & ((1 << shift) - 1)
        return point, np.float64(rest) * np.int64((1023 - shift) << 52).view(np.float64)  # 2 ** -shift: no division
    point = points - 2
    width = np.float64(1 << (point >> bits)) / np.float64(1 << bits)
    return point, count / width - np.float64((1 << bits) + (point & ((1 << bits) - 1)))


@jit
def _on_line(ns, bits, count):
    point, part = _place(count, bits, ns.size)
    return ns[point] + part * (ns[point + 1] - ns[point])


@jit
def _on_grid(ns, row, down, column, along):
    upper = ns[row, column] + along * (ns[row, column + 1] - ns[row, column])
    lower = ns[row + 1, column] + along * (ns[row + 1, column + 1] - ns[row + 1, column])
    return upper + down * (lower - upper)


@jit
def _of_kind(ns, kind, row, down, column, along):
    """_on_grid of one of several tables; a view of it would be counted in and out, which takes as long as reading."""
    upper = ns[kind, row, column] + along * (ns[kind, row, column + 1] - ns[kind, row, column])
    lower = ns[kind, row + 1, column] + along * (ns[kind, row + 1, column + 1] - ns[kind, row + 1, column])
    return upper + down * (lower - upper)
