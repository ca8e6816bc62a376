"""Single operations of one sequence on memory, from Python: a scheduler's verbs without its decisions.

For recordings of the engines' cache managers. The caller keeps to an order that a scheduler could have chosen.
"""

from __future__ import annotations

from ..core.jit import entry
from ..prefix import block_hash, radix
from ..scheduler import kv, prefill_first, token_budget
from ..scheduler.lifecycle import admit, preempt, suspend
from ..scheduler.prefill_admission import add_row, look_up
from ..scheduler.queues import close_slot, queue_back, queue_remove, run_remove
from ..scheduler.state_columns import COMPUTED, GENERATED, KNOWN, NO_SLOT


@entry
def find(e, seq):
    """Blocks of a waiting sequence, all but its last token, that are cached. They stand in the next slot's table."""
    hits, _, _ = look_up(e, seq)
    return hits


@entry
def learn(e, seq, tokens):
    """A sequence has this many tokens more, whoever said so."""
    slot = e.seqs.slot[seq]
    if slot == NO_SLOT:
        e.seqs.generated[seq] += tokens
    else:
        e.slots.rec[slot, KNOWN] += tokens
        e.slots.rec[slot, GENERATED] += tokens


# ---------------------------------------------------------------- block tables (token budget)


@entry
def allocate(e, seq, tokens):
    """Memory for the next tokens of a sequence, which then count as computed; it is admitted if it waits.

    returns  False, and nothing is changed, when blocks are short
    """
    slot = e.seqs.slot[seq]
    e.num_plan = 0
    if slot == NO_SLOT:
        slot, planned = token_budget.try_admit(e, seq, tokens, 0)
        if slot == NO_SLOT:
            return False
    else:
        planned = tokens
        if not kv.extend(e, slot, e.slots.rec[slot, COMPUTED] + tokens):
            return False
    token_budget.add_row(e, slot, planned, 0)
    e.slots.rec[slot, COMPUTED] += planned
    e.context += planned
    return True


@entry
def give_up(e, seq):
    """Preempt a running sequence: its memory goes back, it waits again."""
    slot = e.seqs.slot[seq]
    run_remove(e.slots, slot)
    preempt(e, slot)
    e.num_victims = 0


@entry
def forget_prefixes(e):
    """Make the hash cache empty. False, and nothing is changed, while a block is in use."""
    return block_hash.forget(e.hashes, e.pool)


# ---------------------------------------------------------------- requests over a radix tree (prefill first)


@entry
def begin(e, seq):
    """A waiting sequence gets a slot and holds its hits, however little memory is left. Returns the slot."""
    hits, link, _ = look_up(e, seq)
    queue_remove(e, seq)
    return admit(e, seq, hits, link)


@entry
def reserve(e, slot, tokens):
    """Memory for the next tokens of a prefill."""
    e.num_plan = 0
    add_row(e, slot, tokens)
    prefill_first.reserve_prefill(e)


@entry
def reserve_decode(e, slot):
    """Memory for the next token of a sequence that decodes alone."""
    e.num_plan = 0
    prefill_first.make_room(e, e.rules.block_tokens)
    add_row(e, slot, 1)
    prefill_first.take_row(e, 0)


@entry
def plan(e, slot, tokens):
    """Plan a step of one sequence, whose memory is reserved."""
    e.num_plan = 0
    e.prefill_tokens, e.decode_rows = tokens, 0
    add_row(e, slot, tokens)


@entry
def share_chunk(e, slot):
    """The whole blocks of an unfinished prefill enter the tree."""
    kv.publish_chunk(e, slot)


@entry
def finish(e, slot):
    """A sequence ends: its whole blocks enter the tree, the rest goes back."""
    prefill_first.finish(e, slot)
    e.num_leavers = 0
    close_slot(e, slot)


@entry
def retract(e, slot, seq):
    """A sequence loses its memory, of which nothing enters the tree, and waits again."""
    suspend(e, slot)
    queue_back(e, seq)
    e.num_victims = 0


@entry
def evict(e, blocks):
    """Evict whole leaves until this many blocks went. Returns how many did."""
    return radix.evict(e.tree, e.pool, blocks)
