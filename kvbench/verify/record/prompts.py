"""Token ids of prompts with what caches live on: shared beginnings, repeats, and chats that go on."""

from __future__ import annotations

from numpy.random import Generator


class Prompts:
    """Draws prompts over a small vocabulary. Earlier ones come back, whole, extended or cut."""

    def __init__(self, rng: Generator, vocabulary: int, longest: int) -> None:
        self.rng, self.vocabulary, self.longest = rng, vocabulary, longest
        self.systems = [self.fresh(longest // 4, longest // 2) for _ in range(3)]
        self.seen: list[list[int]] = []

    def fresh(self, low: int, high: int) -> list[int]:
        """New ids, low to high of them."""
        size = int(self.rng.integers(max(low, 1), max(high, low, 1) + 1))
        drawn: list[int] = self.rng.integers(0, self.vocabulary, size).tolist()
        return drawn

    def draw(self) -> list[int]:
        """A prompt of at most `longest` tokens."""
        kind = self.rng.random()
        tail = self.fresh(1, self.longest // 2)
        if kind < 0.3 or not self.seen:
            prompt = self.systems[int(self.rng.integers(0, len(self.systems)))] + tail
        elif kind < 0.45:
            prompt = list(self._earlier())
        elif kind < 0.7:
            prompt = self._earlier() + tail
        elif kind < 0.85:
            earlier = self._earlier()
            prompt = earlier[: int(self.rng.integers(1, len(earlier) + 1))] + tail
        else:
            prompt = tail
        prompt = prompt[: self.longest]
        self.seen.append(prompt)
        return prompt

    def said(self, tokens: list[int]) -> None:
        """A conversation that later prompts may repeat."""
        self.seen.append(tokens[: self.longest])

    def _earlier(self) -> list[int]:
        return self.seen[int(self.rng.integers(0, len(self.seen)))]
