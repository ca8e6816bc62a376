"""A routing policy of one's own: most of the prompt cached, unless that engine has far more to do than the idlest.

    kvbench run fleet-prefixes --router examples/hits_unless_busy.py:hits_unless_busy
    kvbench policy examples/hits_unless_busy.py:hits_unless_busy

It is plain Python that Numba compiles: loops over arrays, no dictionaries.
"""

PENDING_TOKENS = 1  # column of load: tokens of prompts that the router has sent and that have no first token yet


def hits_unless_busy(load, cached, accepts, prompt_tokens, session, now):
    """The engine with the least left to prefill, this prompt's own missing part included."""
    best, least = -1, 0
    for engine in range(len(accepts)):
        if accepts[engine] == 0:
            continue
        left = load[engine, PENDING_TOKENS] + prompt_tokens - cached[engine]
        if best < 0 or left < least:
            best, least = engine, left
    return best
