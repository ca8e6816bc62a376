"""What becomes of one request at arrival: (max_tokens, output tokens), or None where it is refused."""

from dataclasses import dataclass


@dataclass(frozen=True)
class VllmArrival:
    """budget: tokens of a step that cuts no prompt; None where prompts are cut."""

    pool: int
    context: int
    budget: int | None = None

    def __call__(self, prompt, max_tokens, output):
        most = min(self.pool, self.context)
        if output < 1 or prompt + max_tokens > most:
            return None
        if self.budget is not None and prompt + max_tokens > self.budget + 1:
            return None
        return max_tokens, min(output, max_tokens)


@dataclass(frozen=True)
class SglangArrival:
    pool: int
    context: int
    page: int

    def __call__(self, prompt, max_tokens, output):
        if output < 1 or prompt + max_tokens > self.context:  # the front end
            return None
        max_req_len = min(self.context, self.pool) - 1
        if prompt >= max_req_len - 5:  # the scheduler
            return None
        if prompt + self.page >= self.pool:  # its admission never lets this one in
            return None
        pages = 0
        while pages * self.page < prompt:
            pages += 1
        clipped = max(0, min(max_tokens, max_req_len - prompt - 1, self.pool - pages * self.page - self.page - 1))
        return clipped, max(min(output, clipped), 1)
