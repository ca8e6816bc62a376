"""The two stages around an engine that a server has once: text to tokens, and tokens to text and to the client.

By default both only delay. Serial, each does one thing after the other: prompts are tokenised in the order in which
they are sent, and the tokens of a step leave together when all that came before them has left. A stage that is slower
than the device lets its queue grow, and then the clients see the limit, not the device.
"""

from __future__ import annotations

from ..core.jit import inline, jit, struct


@struct
class Stages:
    """Times in ns.

    serial                   prompts are tokenised one after the other
    request_ns, input_ns     of a prompt, and of each of its tokens
    input_free               when the stage has done all that it has got
    fixed_ns                 after its step a token is handed out, whatever the load
    output_ns, output_free   of a token, beside fixed_ns; as for the input
    delay_ns                 after its step a token of the step that is committed is handed out
    """

    serial: "b1"
    request_ns: "i8"
    input_ns: "i8"
    input_free: "i8"
    fixed_ns: "i8"
    output_ns: "i8"
    output_free: "i8"
    delay_ns: "i8"


@jit
def tokenized_ns(s, now, tokens, twin_ns):
    """When a prompt that is sent now has become tokens.

    twin_ns  when that of another sample of its request has or will have; those that are sent together are one prompt
    """
    took = s.request_ns + s.input_ns * tokens
    if s.serial and twin_ns == s.input_free and now + took <= twin_ns:
        return twin_ns
    s.input_free = (max(now, s.input_free) if s.serial else now) + took
    return s.input_free


@inline
def hand_out(s, now, tokens):
    """A step that ended now made so many tokens: sets delay_ns."""
    if s.output_ns > 0:
        s.output_free = max(now, s.output_free) + s.output_ns * tokens
        s.delay_ns = s.output_free - now + s.fixed_ns
