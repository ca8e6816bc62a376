"""The tree of every key: those of a run as a whole, and the ones that the rooms below declare.

Nothing here imports NumPy or Numba: `kvbench config` and a wrong key answer at once.
"""

from __future__ import annotations

from functools import cache

from ..cluster.keys import FLEET_KEYS
from ..core.config import KeyTree
from ..core.keys import Key
from ..costs.graph_keys import GRAPH_KEYS, SYNC_KEYS
from ..costs.keys import COST_KEYS
from ..costs.kv_format import KV_KEYS
from ..costs.models import KV_BYTES, WEIGHT_BYTES
from ..costs.stream_keys import STREAM_KEYS
from ..experts.keys import EPLB_KEYS, EXPERT_KEYS
from ..metrics.keys import SLO_KEYS
from ..offline.keys import OFFLINE_KEYS
from ..pairs.settings import PAIR_KEYS
from ..routing.settings import ROUTER_KEYS
from ..scheduler.keys import BEAM_KEYS, CACHE_KEYS, FAULT_KEYS, SCHEDULER_KEYS
from ..scheduler.presets import DEFAULT_PRESET
from ..tiers.keys import LINK_KEYS, TIER_KEYS
from ..workload.keys import PHASE_KEYS, WORKLOAD_KEYS

DTYPES = tuple(WEIGHT_BYTES)
DEALS = ("least-waiting", "round-robin", "shortest-queue", "fewest-tokens")
KV_DTYPES = ("auto", *KV_BYTES)
_CPU_KV = ("float32", "bf16", "int8", "int4")

RUN_KEYS: tuple[Key, ...] = (
    Key("preset", "str", DEFAULT_PRESET, "", "rules of an engine and version (`kvbench list`)"),
    Key("model", "str", "llama-3.1-8b", "", "a known model, or a path to a Hugging Face config.json"),
    Key("device", "str", "h100", "", "a known device, or a file of one (`kvbench device`)"),
    Key("step_times", "path", "", "", 'file of step times (.npz, .csv); "" = those of the device'),
    Key("tp", "int", 1, "devices", "tensor parallelism", low=1),
    Key("dp", "int", 1, "ranks", "data-parallel ranks of an instance; they step together", low=1, high=1024),
    Key("ep", "int", 1, "devices", "experts are spread over so many: tp x dp; 1 = every rank has all", low=1),
    Key(
        "dp_deal",
        "choice",
        "auto",
        "",
        "which rank gets a request; auto = least-waiting under vLLM, round-robin under SGLang",
        ("auto", *DEALS),
    ),
    Key("dp_balance", "bool", False, "", "no rank admits while one runs as many as it may (vllm-ascend)"),
    Key("dtype", "choice", "bf16", "", "of the weights", DTYPES),
    Key("kv_dtype", "choice", "auto", "", "of the cache; auto = fp16 under fp16 weights, else bf16", KV_DTYPES),
    Key(
        "clock",
        "choice",
        "modelled",
        "",
        "modelled: step times from cost tables; measured: a small model runs here",
        ("modelled", "measured"),
    ),
    Key("seed", "int", 0, "", "of everything drawn; [seeds] overrides parts", low=0),
    Key("block_tokens", "int", 16, "tokens", "in a block of the cache", low=1, high=65536),
    Key("max_model_len", "int", 0, "tokens", "prompt and output at most; 0 = what the model allows", low=0),
    Key("overlap", "bool", False, "", "plan a step while the one before runs; from the preset"),
    Key("check", "bool", False, "", "compare every block after every step with what it should hold; slow"),
    Key("batching", "choice", "continuous", "", "static waits for the longest", ("continuous", "static")),
    Key(
        "path",
        "choice",
        "auto",
        "",
        "how the engine runs; auto = the fast one where allowed",
        ("auto", "step"),
    ),
)

MEASURED_KEYS: tuple[Key, ...] = (
    Key(
        "measured.model", "str", "nano", "", "nano (5M parameters), tiny (39M), small (150M), or a Hugging Face folder"
    ),
    Key("measured.numerics", "choice", "fast", "", "exact: the same bits whatever the schedule", ("fast", "exact")),
    Key("measured.kv_dtype", "choice", "float32", "", "of the KV that is read and written", _CPU_KV),
    Key(
        "measured.layout", "choice", "NHD", "", "of a block: tokens outside the heads, or heads outside", ("NHD", "HND")
    ),
    Key("measured.kv_gib", "float", 0.5, "GiB", "KV where cache.blocks is open", low=0.001, high=4096),
    Key("measured.threads", "int", 1, "threads", "of the kernels", low=1, high=1024),
    Key("measured.temperature", "float", 0.0, "", "of sampling; 0 is greedy", low=0, high=100),
    Key("measured.storage_dir", "str", "", "", "folder of the page files of tiers.storage; empty: one that is removed"),
)
"""Of clock = measured only; there `model` and `device` are those of the modelled clock and unused."""


@cache
def key_tree() -> KeyTree:
    """Every key, and those that a [[phase]] may hold."""
    keys = (
        *RUN_KEYS,
        *MEASURED_KEYS,
        *WORKLOAD_KEYS,
        *CACHE_KEYS,
        *TIER_KEYS,
        *LINK_KEYS,
        *SCHEDULER_KEYS,
        *BEAM_KEYS,
        *FLEET_KEYS,
        *ROUTER_KEYS,
        *PAIR_KEYS,
        *KV_KEYS,
        *GRAPH_KEYS,
        *SYNC_KEYS,
        *COST_KEYS,
        *EXPERT_KEYS,
        *EPLB_KEYS,
        *STREAM_KEYS,
        *FAULT_KEYS,
        *SLO_KEYS,
        *OFFLINE_KEYS,
    )
    return KeyTree(keys, PHASE_KEYS)
