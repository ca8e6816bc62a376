"""Oracle of the cost evaluator: plain Python, one query at a time, axes searched instead of computed.

No product code imports this; it shares no arithmetic with kvbench.costs.tables except the rule that whole
nanoseconds are rounded half up, once per chunk and resource.
"""

import math
from bisect import bisect_right
from functools import cache

HOST = 4
"""The host's part in Step.resources()."""


@cache
def points(bits, count):
    """The first `count` points of an axis of 2**bits parts per octave."""
    parts = 2**bits
    return [2.0 ** (i // parts) * (1 + (i % parts) / parts) for i in range(count)]


def whole(ns):
    return math.floor(max(ns, 0.0) + 0.5)


def place(axis, x):
    """(interval, part of the way through it); the last interval for everything beyond it."""
    i = min(bisect_right(axis, x) - 1, len(axis) - 2)
    return i, (x - axis[i]) / (axis[i + 1] - axis[i])


def mix(a, b, part):
    return a + part * (b - a)


def on_line(ns, bits, x):
    i, part = place(points(bits, len(ns)), float(x))
    return mix(ns[i], ns[i + 1], part)


def on_grid(ns, row_bits, column_bits, row, column):
    i, down = place(points(row_bits, len(ns)), float(row))
    j, along = place(points(column_bits, len(ns[0])), float(column))
    return mix(mix(ns[i][j], ns[i][j + 1], along), mix(ns[i + 1][j], ns[i + 1][j + 1], along), down)


class Step:
    """One step: prefill chunks (new, context), a decode batch, bytes to copy. t: fields of the tables.

    padded: tokens that somebody else pads the step to; 0: by the captured graphs.
    """

    def __init__(self, t, chunks, batch=0, context_sum=0, copy_bytes=0, padded=0):
        self.t, self.chunks, self.batch, self.padded = t, chunks, batch, padded
        self.context_sum, self.copy_bytes = context_sum, copy_bytes

    def chunk_ns(self, new, context):
        t = self.t
        bits = t["prefill_new_bits"], t["prefill_context_bits"]
        bounds = (t["prefill_compute_ns"], t["prefill_memory_ns"])
        return whole(max(on_grid(ns, *bits, new, context + 1) for ns in bounds))

    def decode_ns(self):
        t = self.t
        bits = t["decode_batch_bits"], t["decode_context_bits"]
        kind = 1 if self.chunks else 0
        bounds = (t["decode_compute_ns"][kind], t["decode_memory_ns"][kind])
        return whole(max(on_grid(ns, *bits, self.batch, self.context_sum) for ns in bounds))

    def paid_tokens(self):
        """The smallest captured size that holds the step; its own tokens where nothing is captured for it."""
        tokens = sum(new for new, _ in self.chunks) + self.batch
        sizes = sorted({int(size) for size in self.t["graph_sizes"]})
        if self.padded:
            return self.padded
        if self.chunks and not self.t["graph_mixed"]:
            return tokens
        return next((size for size in sizes if size >= tokens), tokens)

    def resources(self):
        """[linear, prefill attention, decode attention, communication, host, copy, launch] in whole ns."""
        t = self.t
        tokens = self.paid_tokens()
        sequences = len(self.chunks) + self.batch
        prefill = sum(self.chunk_ns(new, context) for new, context in self.chunks)
        prefill = whole(prefill + (t["prefill_step_ns"] if self.chunks else 0.0))
        decode = self.decode_ns() if self.batch else 0
        linear = communication = host = launch = 0
        if sequences:
            head = on_line(t["head_ns"], t["head_bits"], sequences)
            linear = whole(on_line(t["linear_ns"], t["linear_bits"], tokens) + head)
            communication = whole(on_line(t["comm_ns"], t["comm_bits"], tokens))
            host = whole(t["host_step_ns"] + t["host_sequence_ns"] * sequences)
            launch = max(whole(t["launch_ns"]), whole(t["floor_ns"]) - linear - prefill - decode - communication)
        copy = whole(t["copy_ns_per_byte"] * self.copy_bytes)
        return [linear, prefill, decode, communication, host, copy, launch]

    def is_outside(self):
        """Whether a look-up lies beyond what was measured."""
        names = ("tokens", "sequences", "chunk", "chunk_context", "batch", "context")
        tokens, sequences, chunk, chunk_context, batch, context = (self.t[f"limit_{name}"] for name in names)
        return bool(
            self.paid_tokens() > tokens
            or len(self.chunks) + self.batch > sequences
            or any(new > chunk or before > chunk_context for new, before in self.chunks)
            or (self.batch and (self.batch > batch or self.context_sum > self.batch * context))
        )
