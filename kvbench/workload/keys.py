"""The configuration keys of a workload, and those that a [[phase]] may override."""

from __future__ import annotations

from pathlib import Path
from pkgutil import iter_modules

from ..core.keys import Key
from .protocols import CLIENT_KEYS

FROM_SEED = -1
"""Value of seeds.*: use the run's `seed`."""

DEFAULT_NUM_PROMPTS = 1000
"""Requests that a workload generates when num_prompts is 0."""

FORMATS = tuple(sorted(m.name.replace("_", "-") for m in iter_modules([str(Path(__file__).parent / "formats")])))
"""Names of the formats of traces: of the files in `formats`, which are not loaded for it."""

TIME_UNITS = ("s", "ms", "us", "ns")
_PROCESSES = ("gamma", "poisson", "constant", "on-off", "all-at-once", "closed", "users")
_ORDERS = ("ranked", "drawn")

NAMESPACE_PARTS = ("model", "tokenizer", "template", "position_encoding", "mask", "adapter", "kv_dtype", "salt")
"""What a cached block depends on beside its tokens; requests that differ in one of them share nothing."""
_MAX_TOKENS = 'what the scheduler is told: "output", a number, or a factor of the output such as "1.5x"'

# fmt: off
TRACE_KEYS = (
    Key("trace.path", "path", "", "", 'trace to replay: a file, a folder of sessions; "" generates the requests'),
    Key("trace.format", "choice", "auto", "", "what the trace is; auto looks inside", ("auto", *FORMATS)),
    Key("trace.columns", "str", "", "", "columns by name: timestamp=NAME,input=NAME,output=NAME,session=NAME"),
    Key("trace.turns", "choice", "auto", "", "a row of a session is what is new (delta), or all of its prompt",
        ("auto", "delta", "whole")),
    Key("trace.default_output", "length", 0, "tokens", "output of rows that state none; 0 refuses them", low=0),
    Key("trace.time_unit", "choice", "auto", "", "of the trace's times; auto goes by format, size and rate",
        ("auto", *TIME_UNITS)),
    Key("trace.sort", "bool", False, "", "sort rows that are not in order of time, instead of stopping"),
    Key("trace.block_tokens", "int", 0, "tokens", "tokens of one hash id; 0 is the format's (Mooncake: 512)", low=0),
    Key("trace.time_scale", "float", 1.0, "", "factor on every time of the trace, delays included", low=1e-9),
    Key("trace.arrivals", "choice", "recorded", "", "poisson draws them anew, at trace.rate or the recorded mean,"
        " without bursts", ("recorded", "poisson")),
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
    Key("exclude", "bool", False, "", "this part runs and is left out of the results"),
    Key("arrivals.process", "choice", "gamma", "", "gamma of burstiness 1 is poisson; closed keeps"
        " `concurrency` in flight", _PROCESSES),
    Key("arrivals.rate", "float", float("inf"), "requests/s", "mean rate, turns counted; inf is all at once",
        low=1e-6),
    Key("arrivals.burstiness", "float", 1.0, "", "gamma shape: below 1 burstier than poisson, above steadier",
        low=1e-3, high=1e6),
    Key("arrivals.exact_rate", "bool", False, "", "rescale drawn gaps so that n requests take n / rate, as vllm bench"
        " serve does"),
    Key("arrivals.stages", "tables", [], "", "instead of a rate: rate, seconds; for a ramp `to` and ramp ="
        " linear or exponential"),
    Key("arrivals.off_rate", "float", 0.0, "requests/s", "on-off: rate while off; the rate while on makes up for it",
        low=0),
    Key("arrivals.on_s", "float", 10.0, "s", "on-off: mean time on, exponential", low=1e-3, high=1e9),
    Key("arrivals.off_s", "float", 10.0, "s", "on-off: mean time off, exponential", low=1e-3, high=1e9),
    Key("arrivals.users", "int", 0, "users", "users: each asks, waits for the answer, thinks, asks again", low=0,
        high=10_000_000),
    Key("arrivals.response_s", "length", 2.0, "s", "users: response time assumed for what they did before t = 0",
        low=0),
    Key("arrivals.cancel_share", "float", 0.0, "", "share of requests that clients cancel", low=0, high=1),
    Key("arrivals.cancel_after_s", "length", 5.0, "s", "time from arrival to cancel", low=0),
    Key("arrivals.priorities", "int", 1, "", "priority levels, drawn evenly by session; 0 is the most urgent",
        low=1, high=1024),
    Key("lengths.prompt", "length", 1024, "tokens", "new text of a request or turn; the prefix is extra",
        low=1),
    Key("lengths.output", "length", 128, "tokens", "tokens that are really generated", low=0),
    Key("lengths.max_tokens", "length", "output", "tokens", _MAX_TOKENS, low=1),
    Key("lengths.samples", "length", 1, "sequences", "outputs generated for one prompt", low=1, high=1024),
    Key("lengths.thinking", "length", 0, "tokens", "generated before lengths.output; later turns leave it out", low=0),
    Key("lengths.joint", "bool", False, "", "prompt and output by one draw: rows of two empirical columns"),
    Key("sharing.system", "length", 0, "tokens", "system prompt, the same for all; before tools, few-shot, prefix",
        low=0),
    Key("sharing.tools", "length", 0, "tokens", "tool definitions", low=0),
    Key("sharing.tool_sets", "int", 1, "", "different tool definitions, by sharing.zipf", low=1, high=1_000_000),
    Key("sharing.few_shot", "length", 0, "tokens", "examples, behind the tools", low=0),
    Key("sharing.few_shot_sets", "int", 1, "", "different sets of examples, by sharing.zipf", low=1, high=1_000_000),
    Key("sharing.groups", "int", 0, "", "different shared prefixes; 0 is none", low=0, high=10_000_000),
    Key("sharing.prefix", "length", 512, "tokens", "shared prefix; comes before lengths.prompt", low=1),
    Key("sharing.zipf", "float", 0.0, "", "the prefix at rank r is asked for as r ** -zipf; 0 is evenly",
        low=0, high=20),
    Key("sharing.tenants", "int", 1, "", "tenants, drawn evenly by session", low=1, high=1_000_000),
    Key("sharing.namespaces", "int", 1, "", "cache namespaces (no shared block); tenants are dealt to them",
        low=1, high=1_000_000),
    Key("sharing.scan_share", "float", 0.0, "", "share of sessions that are one long prompt, seen once", low=0, high=1),
    Key("sharing.scan", "length", 16000, "tokens", "prompt of a scan; it shares nothing", low=1),
    Key("documents.count", "int", 0, "", "documents to retrieve from; 0 is none", low=0, high=10_000_000),
    Key("documents.tokens", "length", 800, "tokens", "of one document", low=1),
    Key("documents.per_request", "length", 4, "documents", "different ones before each request's own text", low=0,
        high=1000),
    Key("documents.zipf", "float", 1.0, "", "the document at rank r is retrieved as r ** -zipf", low=0, high=20),
    Key("documents.order", "choice", "drawn", "", "drawn: as retrieved; ranked: the most popular first", _ORDERS),
    *(Key(f"namespace.{part}", "names", "", "", "names; each session draws one, and others share nothing with it")
      for part in NAMESPACE_PARTS),
    Key("sessions.turns", "length", 1, "turns", "requests of a session; each holds all before it", low=1),
    Key("sessions.think_s", "length", 0.0, "s", "from the end of a turn to the arrival of the next", low=0),
    Key("sessions.fork_share", "float", 0.0, "", "share of third and later turns that go on from an earlier turn",
        low=0, high=1),
    Key("sessions.retokenised", "float", 0.0, "", "share of answers that come back as other tokens from a point on",
        low=0, high=1),
    Key("agents.calls", "length", 0, "requests", "parallel calls after each turn but the last, which all join", low=0,
        high=1000),
    Key("agents.prompt", "length", 200, "tokens", "new text of a call; what was said before stands in front", low=1),
    Key("agents.output", "length", 100, "tokens", "answer of a call; the next turn holds it", low=0),
)

WHOLE_RUN_KEYS = (
    Key("flush", "tables", [], "", "at_s and any of namespace.*: when these are emptied (weights or adapter changed)"),
    Key("sharing.hit_rate", "float", 0.0, "", "of an infinite cache: steers sharing.prefix; 0 is off", low=0, high=1),
    Key("arrivals.concurrency", "int", 0, "requests", "most in flight, 0 is no limit; with a rate, waiting"
        " counts from the time meant", low=0),
    Key("seeds.arrivals", "int", FROM_SEED, "", "arrivals, cancels, priorities; -1 is `seed`", low=-1),
    Key("seeds.lengths", "int", FROM_SEED, "", "lengths, samples, turns, thinking; -1 is `seed`", low=-1),
    Key("seeds.sharing", "int", FROM_SEED, "", "groups, prefixes, tenants; -1 is `seed`", low=-1),
    Key("seeds.beam", "int", FROM_SEED, "", "parents of beams; -1 is `seed`", low=-1),
)
# fmt: on

WORKLOAD_KEYS: tuple[Key, ...] = TRACE_KEYS + PHASE_WORKLOAD_KEYS + WHOLE_RUN_KEYS + CLIENT_KEYS

PHASE_KEYS: tuple[Key, ...] = (
    Key("name", "str", "", "", 'name of the phase in requests.csv; "" is phase-1, phase-2, ...'),
    Key("warm_up", "bool", False, "", "runs under cache.state = warm only, and is left out of the results"),
    Key("pause_s", "float", 0.0, "s", "from the last arrival of the phase before", low=0, high=1e9),
    *PHASE_WORKLOAD_KEYS,
)
