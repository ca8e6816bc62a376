"""Cost tables and the one evaluator that reads them: a query in, nanoseconds by resource out.

A step costs: linear part by new tokens, output head by sequences, prefill attention by (new, context) of
each chunk, decode attention by (batch, summed context), communication by new tokens, host and launch
time, copies. Who fills the tables (datasheet, profile, fit) is unknown here.

Between the points of an axis (see axes.py) interpolation is (bi)linear, beyond the last one the last stretch
goes on. Floats live only here: in a fixed order, without libm, rounded to whole ns once per chunk and
resource, so that the same query gives the same integer on every machine. Nothing is allocated; measured
warm on one core of a shared machine: step_ns 30-50 ns, add_prefill 16-26 ns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.errors import UsageError
from ..core.jit import jit, struct
from .axes import F64, Grid, Line

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
    COPY_BYTES,
) = range(12)
QUERY_SIZE = 12
# NEW_TOKENS            tokens computed in the step, prefill and decode
# NUM_PREFILL           prefill chunks in the step
# PREFILL_ATTENTION_NS  accumulated by add_prefill, whole ns
# DECODE_CONTEXT_SUM    cached tokens that the decoding sequences attend to
# NUM_SEQUENCES         sequences in the step; each computes logits for its last token (both engines do so
#                       even for a chunk that is not the last, and drop them)
# GRAPH_BUCKET          batch size that a captured graph pads to
# EXPERT_LOAD_MAX, ACTIVE_EXPERTS, DISPATCH_BYTES   of one rank
# COPY_BYTES            bytes copied within the device before the step (a shared block that is written)

# The result: an int64 array of NUM_RESOURCES entries; its sum is the step.
LINEAR, PREFILL_ATTENTION, DECODE_ATTENTION, COMMUNICATION, HOST, COPY = range(6)
NUM_RESOURCES = 6
RESOURCE_NAMES = ("linear", "prefill_attention", "decode_attention", "communication", "host", "copy")

UNREAD = ("decode_context_max", "graph_bucket", "expert_load_max", "active_experts", "dispatch_bytes")
"""Dimensions of the query that no table here has: uneven contexts, graph padding, expert imbalance."""


@struct
class CostTables:
    """The tables of one device, model and parallelism, in ns. *_bits: of the axis, see axes.py.

    linear_ns, comm_ns    (points,) by new tokens
    head_ns               (points,) by sequences
    prefill_*_ns          (new points, context + 1 points) of one chunk: the larger of the two
    decode_*_ns           (batch points, context sum points) of all decoding sequences: the larger of the two
    host_step_ns          host and launch time of a step
    host_sequence_ns      host time of a step per sequence
    copy_ns_per_byte      copies within the device
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
    decode_compute_ns: "f8[:,::1]"
    decode_memory_ns: "f8[:,::1]"
    decode_batch_bits: "i8"
    decode_context_bits: "i8"
    host_step_ns: "f8"
    host_sequence_ns: "f8"
    copy_ns_per_byte: "f8"


@dataclass(frozen=True)
class Costs:
    """Tables with what a reader of the results must know about them."""

    tables: CostTables
    source: str
    """One line: where the times come from and how far they are calibrated."""
    missing: tuple[str, ...] = UNREAD
    """Dimensions of the query that do not change the result."""
    notes: tuple[str, ...] = ()
    """One line each on assumptions that hold for this combination only."""


@dataclass(frozen=True)
class Overheads:
    """Times that are not tables, in ns."""

    step_ns: float
    sequence_ns: float
    copy_ns_per_byte: float


def build_tables(
    linear: Line, communication: Line, head: Line, prefill: Grid, decode: Grid, overheads: Overheads
) -> CostTables:
    """Tables from sampled costs, checked. Raises UsageError that names the table and what is wrong with it.

    prefill's columns are sampled at context + 1, so that an axis from 1 on holds a context of 0.
    """
    for name, line in (("linear", linear), ("communication", communication), ("head", head)):
        _check(name, line.ns, 1)
    for name, grid in (("prefill", prefill), ("decode", decode)):
        _check(name, grid.compute_ns, 2)
        _check(name, grid.memory_ns, 2)
        if grid.compute_ns.shape != grid.memory_ns.shape:
            raise UsageError(f"cost table {name!r}: its two bounds have different shapes")
    return CostTables(
        *(linear.ns, linear.bits, communication.ns, communication.bits, head.ns, head.bits),
        *(prefill.compute_ns, prefill.memory_ns, prefill.row_bits, prefill.column_bits),
        *(decode.compute_ns, decode.memory_ns, decode.row_bits, decode.column_bits),
        *(overheads.step_ns, overheads.sequence_ns, overheads.copy_ns_per_byte),
    )


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


@jit
def step_ns(tables, query, resources):
    """Nanoseconds of the step that the query describes.

    resources  (NUM_RESOURCES,) int64, overwritten
    returns    int64, exactly the sum of resources; a step without tokens costs its copies alone
    """
    linear = communication = decode = host = 0
    tokens, sequences, batch = query[NEW_TOKENS], query[NUM_SEQUENCES], query[DECODE_BATCH]
    if tokens > 0.0:
        head = _on_line(tables.head_ns, tables.head_bits, sequences)
        linear = _whole(_on_line(tables.linear_ns, tables.linear_bits, tokens) + head)
        communication = _whole(_on_line(tables.comm_ns, tables.comm_bits, tokens))
        host = _whole(tables.host_step_ns + tables.host_sequence_ns * sequences)
    if batch > 0.0:
        compute, memory = tables.decode_compute_ns, tables.decode_memory_ns
        row, down = _place(batch, tables.decode_batch_bits, compute.shape[0])
        column, along = _place(query[DECODE_CONTEXT_SUM], tables.decode_context_bits, compute.shape[1])
        decode = _whole(max(_on_grid(compute, row, down, column, along), _on_grid(memory, row, down, column, along)))
    prefill = _whole(query[PREFILL_ATTENTION_NS])
    copy = _whole(tables.copy_ns_per_byte * query[COPY_BYTES])
    resources[LINEAR] = linear
    resources[PREFILL_ATTENTION] = prefill
    resources[DECODE_ATTENTION] = decode
    resources[COMMUNICATION] = communication
    resources[HOST] = host
    resources[COPY] = copy
    return linear + prefill + decode + communication + host + copy


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
        return point, np.float64(rest) / np.float64(1 << shift)
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
