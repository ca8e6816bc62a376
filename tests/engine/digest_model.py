"""A model in a few lines whose every token depends on all that it attends to: what lies in a block must be right.

The KV of a token is a digest of the token and of all KV before it, read through the block table; a row's next token is
a digest of all KV up to its last one. So a block that holds another prefix, was never written, was copied late or not
at all changes the tokens from there on.
"""

from __future__ import annotations

import numpy as np

from kvbench.model.forward import StepBatch, StepResult

MASK = (1 << 64) - 1


def digest(*values: int) -> int:
    x = 0x2545F4914F6CDD1D
    for value in values:
        x = ((x ^ (value & MASK)) * 0x9E3779B97F4A7C15) & MASK
        x ^= x >> 29
    return x


class DigestMemory:
    """Blocks of digests, of a device or of the host."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.bt, self.block_bytes = block_tokens, 8 * block_tokens
        self.kv = [digest(i, 77) for i in range((num_blocks + 1) * block_tokens)]  # never zeros: they would hide a hole

    def another(self, num_blocks: int) -> DigestMemory:
        return DigestMemory(num_blocks, self.bt)

    def copy_from(self, source: DigestMemory, pairs: np.ndarray) -> None:
        for origin, target in pairs.tolist():
            self.kv[target * self.bt : (target + 1) * self.bt] = source.kv[origin * self.bt : (origin + 1) * self.bt]

    def read(self, blocks: np.ndarray) -> np.ndarray:
        rows = [self.kv[b * self.bt : (b + 1) * self.bt] for b in blocks.tolist()]
        return np.array(rows, np.uint64).view(np.uint8).reshape(len(rows), -1)

    def write(self, blocks: np.ndarray, content: np.ndarray) -> None:
        for block, row in zip(blocks.tolist(), content, strict=True):
            self.kv[block * self.bt : (block + 1) * self.bt] = row.copy().view(np.uint64).tolist()


class DigestModel(DigestMemory):
    """Device of the measured clock (engine.worker)."""

    vocab = 1000

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        super().__init__(num_blocks, block_tokens)
        self.copied: list[tuple[int, int]] = []

    def step(self, batch: StepBatch) -> StepResult:
        logits = np.zeros((len(batch.contexts), self.vocab), np.float32)
        written = []
        for row, context in enumerate(batch.contexts.tolist()):
            first, stop = batch.row_starts[row : row + 2].tolist()
            written.append((row, context, first, stop))
        # Every layer writes the KV of the batch before it attends: rows that read what others write come right only
        # if their writers go first, as in real layers. Digests are made in order of position.
        state = {row: self._fold(batch.tables[row], context) for row, context, _, _ in written if context == 0}
        todo = sorted(
            (int(batch.positions[t]), row, t, context)
            for row, context, first, stop in written
            for t in range(first, stop)
        )
        for _, row, t, context in todo:
            if row not in state:
                state[row] = self._fold(batch.tables[row], context)
            value = digest(int(batch.tokens[t]), state[row])
            self.kv[int(batch.slots[t])] = value
            state[row] = digest(state[row], value)
        for row, *_ in written:
            logits[row, state[row] % self.vocab] = 1.0
        return StepResult(logits.argmax(1), logits, {"all": 1})

    def _fold(self, table: np.ndarray, context: int) -> int:
        state = 0
        for position in range(context):
            state = digest(state, self.kv[int(table[position // self.bt]) * self.bt + position % self.bt])
        return state

    def sample(self, logits: np.ndarray, keys: np.ndarray, temperature: float) -> np.ndarray:
        return logits.argmax(1)

    def copy(self, pairs: np.ndarray) -> None:
        for source, destination in pairs.tolist():
            self.copied.append((source, destination))
            a, b = source * self.bt, destination * self.bt
            self.kv[b : b + self.bt] = self.kv[a : a + self.bt]


def answer(prompt: list[int], said: list[int]) -> list[int]:
    """What the model says after a prompt and each of the tokens that followed, with memory of its own."""
    state, drawn = 0, []
    for token in prompt:
        state = digest(state, digest(token, state))
    for token in said:
        drawn.append(state % DigestModel.vocab)
        state = digest(state, digest(token, state))
    return drawn
