"""Prices steps through the jitted verbs, from Python."""

import numpy as np

from kvbench.core.jit import entry
from kvbench.costs import tables as t
from kvbench.costs.deployment import Deployment
from kvbench.costs.named import find_device, find_model


def deployment(device="h100", model="llama-3.1-8b", **rest):
    return Deployment(find_device(device), find_model(model), **rest)


@entry
def _price(tables, steps, out, totals):
    query = np.zeros(t.QUERY_SIZE, np.float64)
    for i in range(steps.shape[0]):
        new, context, batch, context_sum, copies = steps[i]
        t.clear(query)
        if new > 0:
            t.add_prefill(tables, query, new, context)
        if batch > 0:
            t.set_decode(query, batch, context_sum, context_sum // batch)
        query[t.COPY_BYTES] = copies
        totals[i] = t.step_ns(tables, query, out[i])


def price(tables, steps):
    """steps: (n, 5) of new, context, batch, context_sum, copy bytes -> ns by resource (n, 6), total (n,)."""
    steps = np.asarray(steps, np.int64).reshape(-1, 5)
    out = np.zeros((len(steps), t.NUM_RESOURCES), np.int64)
    totals = np.zeros(len(steps), np.int64)
    _price(tables, steps, out, totals)
    return out, totals


@entry
def _price_chunks(tables, chunks, batches, out):
    query = np.zeros(t.QUERY_SIZE, np.float64)
    t.clear(query)
    for i in range(chunks.shape[0]):
        t.add_prefill(tables, query, chunks[i, 0], chunks[i, 1])
    for i in range(batches.shape[0]):
        t.set_decode(query, batches[i, 0], batches[i, 1], batches[i, 1])
    t.step_ns(tables, query, out)
    return query


def price_chunks(tables, chunks, batches=()):
    """One step of many chunks; the last of `batches` (batch, context_sum) counts. -> resources, query."""
    out = np.zeros(t.NUM_RESOURCES, np.int64)
    chunks = np.array(chunks, np.int64).reshape(-1, 2)
    query = _price_chunks(tables, chunks, np.array(batches, np.int64).reshape(-1, 2), out)
    return out.tolist(), query
