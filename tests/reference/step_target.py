"""How many prompt tokens a step takes beside its decodes so that it keeps to a time, in plain Python: one by one."""

from dataclasses import dataclass

from .cost import Step


@dataclass(frozen=True)
class StepTarget:
    """tables: fields of the cost tables. target_ns: 0 = none. whole: tokens of a whole chunk, equal chunks; 0 = off."""

    tables: dict
    target_ns: int
    whole: int

    def num_tokens(self, decode_contexts, context, budget, block_tokens):
        """The most, at least a block, of which the step keeps to the target."""
        num_tokens = min(block_tokens, budget)
        while num_tokens < budget and self._fits(decode_contexts, num_tokens + 1, context):
            num_tokens += 1
        return num_tokens

    def _fits(self, decode_contexts, num_tokens, context):
        chunk = [(num_tokens, context)]
        if self.target_ns:
            step = Step(self.tables, chunk, len(decode_contexts), sum(decode_contexts))
            if sum(step.resources()) > self.target_ns:
                return False
        alone = [sum(Step(self.tables, c).resources()) for c in (chunk, [(self.whole, 0)])] if self.whole else (0, 0)
        return alone[0] <= alone[1]
