"""The configuration keys of a workload, and those that a [[phase]] may override."""

from __future__ import annotations

from ..core.keys import Key

FROM_SEED = -1
"""Value of seeds.*: use the run's `seed`."""

DEFAULT_NUM_PROMPTS = 1000
"""Requests that a workload generates when num_prompts is 0."""

_FORMATS = tuple(
    "auto kvbench mooncake bailian weka azure burstgpt lengths llmservingsim tracelab servegen aiperf vllm-custom"
    " vllm-multi-turn openai sharegpt lmcache otel".split()
)
_PROCESSES = ("gamma", "poisson", "constant", "all-at-once", "closed")
_MAX_TOKENS = 'what the scheduler is told: "output", a number, or a factor of the output such as "1.5x"'

# fmt: off
TRACE_KEYS = (
    Key("trace.path", "path", "", "", 'trace to replay: a file, a folder of sessions; "" generates the requests'),
    Key("trace.format", "choice", "auto", "", "what the trace is; auto looks inside", _FORMATS),
    Key("trace.block_tokens", "int", 0, "tokens", "tokens of one hash id; 0 is the format's (Mooncake: 512)", low=0),
    Key("trace.time_scale", "float", 1.0, "", "factor on every time of the trace, delays included", low=1e-9),
    Key("trace.rate", "float", 0.0, "requests/s", "stretch arrivals to this mean, or draw them where there are none;"
        " 0 is as recorded", low=0),
    Key("trace.burstiness", "float", 1.0, "", "gamma shape of arrivals that are drawn: 1 is poisson", low=1e-3,
        high=1e6),
    Key("trace.start_s", "float", 0.0, "s", "leave out what arrives before", low=0),
    Key("trace.duration_s", "float", 0.0, "s", "replay what arrives within so long; 0 is to the end", low=0),
    Key("trace.jitter_ms", "float", 0.0, "ms", "spread arrivals by +- half of this; 0 is off", low=0),
    Key("trace.tokenizer", "path", "", "", "a tokenizer.json for text (extra kvbench[tokenizers])"),
    Key("trace.chars_per_token", "float", 0.0, "characters", "lengths of text by this estimate, which shares"
        " nothing; 0 is none", low=0, high=100),
    Key("trace.skip_bad_rows", "bool", False, "", "leave wrong rows out and count them instead of stopping"),
)

PHASE_WORKLOAD_KEYS = (
    Key("num_prompts", "int", 0, "requests", "how many; 0 is the whole trace, or 1,000 generated", low=0,
        high=100_000_000),
    Key("arrivals.process", "choice", "gamma", "", "gamma with burstiness 1 is poisson; closed keeps"
        " `concurrency` requests in flight", _PROCESSES),
    Key("arrivals.rate", "float", float("inf"), "requests/s", "mean rate, turns counted; inf is all at once",
        low=1e-6),
    Key("arrivals.burstiness", "float", 1.0, "", "gamma shape: below 1 burstier than poisson, above steadier",
        low=1e-3, high=1e6),
    Key("arrivals.cancel_share", "float", 0.0, "", "share of requests that clients cancel", low=0, high=1),
    Key("arrivals.cancel_after_s", "length", 5.0, "s", "time from arrival to cancel", low=0),
    Key("arrivals.priorities", "int", 1, "", "priority levels, drawn evenly by session; 0 is the most urgent",
        low=1, high=1024),
    Key("lengths.prompt", "length", 1024, "tokens", "new text of a request or turn; the prefix is extra",
        low=1),
    Key("lengths.output", "length", 128, "tokens", "tokens that are really generated", low=0),
    Key("lengths.max_tokens", "length", "output", "tokens", _MAX_TOKENS, low=1),
    Key("lengths.samples", "length", 1, "sequences", "outputs generated for one prompt", low=1, high=1024),
    Key("sharing.groups", "int", 0, "", "different shared prefixes; 0 is none", low=0, high=10_000_000),
    Key("sharing.prefix", "length", 512, "tokens", "shared prefix; comes before lengths.prompt", low=1),
    Key("sharing.zipf", "float", 0.0, "", "the prefix at rank r is asked for as r ** -zipf; 0 is evenly",
        low=0, high=20),
    Key("sharing.tenants", "int", 1, "", "tenants, drawn evenly by session", low=1, high=1_000_000),
    Key("sharing.namespaces", "int", 1, "", "cache namespaces (no shared block); tenants are dealt to them",
        low=1, high=1_000_000),
    Key("sessions.turns", "length", 1, "turns", "requests of a session; each holds all before it", low=1),
    Key("sessions.think_s", "length", 0.0, "s", "from the end of a turn to the arrival of the next", low=0),
)

WHOLE_RUN_KEYS = (
    Key("arrivals.concurrency", "int", 0, "requests", "most requests in flight; 0 is no limit", low=0),
    Key("seeds.arrivals", "int", FROM_SEED, "", "arrivals, cancels, priorities; -1 is `seed`", low=-1),
    Key("seeds.lengths", "int", FROM_SEED, "", "lengths, samples, turns, thinking; -1 is `seed`", low=-1),
    Key("seeds.sharing", "int", FROM_SEED, "", "groups, prefixes, tenants; -1 is `seed`", low=-1),
    Key("seeds.beam", "int", FROM_SEED, "", "parents of beams; -1 is `seed`", low=-1),
)
# fmt: on

WORKLOAD_KEYS: tuple[Key, ...] = TRACE_KEYS + PHASE_WORKLOAD_KEYS + WHOLE_RUN_KEYS

PHASE_KEYS: tuple[Key, ...] = (
    Key("name", "str", "", "", 'name of the phase in requests.csv; "" is phase-1, phase-2, ...'),
    *PHASE_WORKLOAD_KEYS,
)
