"""The token ids of every sequence: what its prompt says, and what has been sampled for it so far.

A virtual token (stream, index) gets an id that depends on both and on the run's seed, so equal content has equal ids.
A prompt that quotes an answer (its segment is the output stream of an earlier turn) says what was really sampled.
Explicit ids are themselves, modulo the vocabulary; an answer that is given as explicit ids is what it is said to be,
since later turns and block keys rely on it.
"""

from __future__ import annotations

import hashlib

import numpy as np

from ..core.errors import UsageError
from ..core.requests import EXPLICIT, I64, NONE, Requests
from ..kernels.sampling import mix

_PRIMES = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9))


def mixed(seed: int, first: I64 | int, second: I64 | int) -> np.ndarray:
    """uint64 of three numbers: the bits of their weighted sum, mixed."""
    with np.errstate(over="ignore"):
        x = np.asarray(first).astype(np.uint64) * _PRIMES[0] + np.asarray(second).astype(np.uint64) * _PRIMES[1]
        return mix(x + np.uint64(seed % (1 << 63)) * _PRIMES[2])


class Texts:
    """Prompt and output ids of the sequences of a request table (samples and beams counted).

    said   (sum of outputs,) int64, sequence s owns [first[s], first[s] + output[s]); told (n,): how many are sampled
    drawn  the same before a given answer took its place: what the model said
    """

    def __init__(self, requests: Requests, output: I64, vocab: int, seed: int) -> None:
        self._requests, self._vocab, self._seed = requests, vocab, seed
        self.request = np.repeat(np.arange(len(requests)), requests.samples)
        self.sample = np.arange(self.request.size) - np.repeat(
            np.cumsum(requests.samples) - requests.samples, requests.samples
        )
        self.prompt_tokens = requests.prompt_tokens[self.request]
        self.output = output
        self.first = np.cumsum(output) - output
        self.said = np.zeros(int(output.sum()), np.int64)
        self.drawn = np.zeros(self.said.size, np.int64)
        self.told = np.zeros(output.size, np.int64)
        self._speaker = self._speakers()
        self._check_quotes()
        self._prompts: dict[int, I64] = {}
        self.best: dict[int, int] = {}
        """Beams: request -> the sequence whose text is the result, once it is known."""

    def _speakers(self) -> dict[int, int]:
        """Output stream -> the sequence that says it."""
        streams = self._requests.output_stream[self.request]
        virtual = np.flatnonzero(streams != EXPLICIT)
        return dict(zip((streams + self.sample)[virtual].tolist(), virtual.tolist(), strict=True))

    def _check_quotes(self) -> None:
        r = self._requests
        owner = np.repeat(np.arange(len(r)), np.diff(r.segment_offset))
        for request, stream in zip(owner.tolist(), r.segment_stream.tolist(), strict=True):
            if stream == EXPLICIT or stream not in self._speaker:
                continue
            quoted, before = int(self.request[self._speaker[stream]]), int(r.after[request])
            while before not in (NONE, quoted):
                before = int(r.after[before])
            if before != quoted:
                raise UsageError(
                    f"request {request} quotes the answer of request {quoted} and does not come after it, so nobody "
                    "knows what it says; on the measured clock such a prompt needs the answer as a session's turn"
                )

    def prompt(self, seq: int) -> I64:
        """Ids of a sequence's prompt. Made when it is first scheduled, when all that it quotes has been said."""
        if seq not in self._prompts:
            request = int(self.request[seq])
            r = self._requests
            pieces = [
                self._piece(int(r.segment_stream[g]), int(r.segment_start[g]), int(r.segment_length[g]))
                for g in range(int(r.segment_offset[request]), int(r.segment_offset[request + 1]))
            ]
            self._prompts[seq] = np.concatenate(pieces)
        return self._prompts[seq]

    def _piece(self, stream: int, start: int, length: int) -> I64:
        if stream == EXPLICIT:
            return self._requests.token_ids[start : start + length] % self._vocab
        ids = (mixed(self._seed, stream, np.arange(start, start + length)) % np.uint64(self._vocab)).astype(np.int64)
        if stream in self._speaker:  # an answer that was cut short is quoted as far as it goes
            speaker = self.best.get(int(self.request[self._speaker[stream]]), self._speaker[stream])
            said = self.said[self.first[speaker] : self.first[speaker] + self.told[speaker]][start : start + length]
            ids[: said.size] = said
        return ids

    def forced(self, seq: int, index: int, token: int) -> int:
        """The id that stands as output token `index`: the sampled one, unless the answer is given."""
        r, request = self._requests, int(self.request[seq])
        if r.output_stream[request] == EXPLICIT:
            return int(r.token_ids[r.output_start[request] + index]) % self._vocab
        return token

    def tokens(self, seq: int, start: int, stop: int) -> I64:
        """Ids of positions start .. stop of a sequence."""
        prompt = int(self.prompt_tokens[seq])
        first = int(self.first[seq])
        if start >= prompt:
            return self.said[first + start - prompt : first + stop - prompt]
        ids = self.prompt(seq)[start:stop]
        if stop > prompt:
            ids = np.concatenate((ids, self.said[first : first + stop - prompt]))
        return ids

    def say(self, seq: int, index: int, token: int) -> None:
        """Output token `index` of a sequence is sampled (or made again after a preemption)."""
        self.drawn[self.first[seq] + index] = token
        self.said[self.first[seq] + index] = self.forced(seq, index, token)
        self.told[seq] = index + 1

    def take_over(self, donor: int, seq: int, count: int) -> None:
        """A fork: the first `count` output tokens are the donor's."""
        to, of = int(self.first[seq]), int(self.first[donor])
        for ids in (self.said, self.drawn):
            ids[to : to + count] = ids[of : of + count]
        self.told[seq] = count

    def forget_prompt(self, seq: int) -> None:
        """The sequence has ended."""
        self._prompts.pop(seq, None)

    def digest(self, seq: int, generated: int) -> str:
        """64 bits, in hex, of the first `generated` tokens that the model said."""
        first = int(self.first[seq])
        return hashlib.blake2b(self.drawn[first : first + generated].tobytes(), digest_size=8).hexdigest()

    def sample_keys(self, seqs: I64, index: I64) -> np.ndarray:
        """(n,) uint64: the draw of output token index[i] of seqs[i], whatever step makes it."""
        who = self.request[seqs] * 1024 + self.sample[seqs]
        return mixed(self._seed + 1, who, index)
