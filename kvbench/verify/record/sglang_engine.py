"""What the versions of SGLang (0.5.12, 0.5.23) have in common for a recording: imports, configuration, memory.

Nothing that decides is replaced. Stand-ins: modules that exist only beside a GPU; the two triton kernels of the paged
allocator, by loops that give the same slots; sampling. The clock is a counter, so that no two reads tie.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import version
from itertools import count
from typing import Any

from ...core.errors import UsageError
from .adapting import Open, call
from .scripts import Fields
from .stand_ins import stand_in

VERSIONS = ("0.5.12", "0.5.23")

_GPU_ONLY = (
    "aiter apex av blobfile cuda cutlass decord decord2 deep_ep deep_gemm deepseek_recipe flash_attn flash_mla "
    "flashinfer humming kernels llguidance mistral_common modelscope mooncake nixl nvshmem outlines outlines_core "
    "quack sgl_deep_gemm sgl_kernel smg_grpc_servicer soundfile tilelang timm tml_renderers torch_memory_saver torchao "
    "torchaudio torchcodec torchvision triton xgrammar"
).split()


class Quiet:
    """Every method does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments, **named: None


class _Sampling:
    """Sampling that decides nothing."""

    penalizer_orchestrator = Open(is_required=False)

    def merge_batch(self, other: Any) -> None: ...

    def filter_batch(self, *arguments: Any, **named: Any) -> None: ...

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def prepare() -> str:
    """Make SGLang importable here. Returns its version; ImportError: it, or something that it needs, is missing."""
    found = version("sglang")
    if found not in VERSIONS:
        raise UsageError(f"sglang {found} is installed; recordings are made of {' and '.join(VERSIONS)}")
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    stand_in(_GPU_ONLY, hidden_from=("transformers", "torch"))
    _register_leniently()
    import_module("sglang.srt.managers.scheduler")
    return found


def _register_leniently() -> None:
    """transformers refuses to learn a model twice; the one that is installed may know some of SGLang's own."""
    import_module("transformers.image_utils")
    import_module("transformers.models.auto.processing_auto")
    auto: Any = import_module("transformers.models.auto.configuration_auto").AutoConfig
    register: Callable[..., Any] = auto.register
    auto.register = staticmethod(lambda kind, config, exist_ok=False: register(kind, config, exist_ok=True))


class Engine:
    """One configuration of the engine: its memory, its tree, its requests.

    new     0.5.23 and later: configuration in a context, one tree whose nodes are numbers, NewTokenRatioTracker
    torch, batches, policies, schedulers    modules
    pool, allocator, tree                   request table, slots, prefix cache
    evicted                                 tokens of each node that was evicted, in order; the caller clears it
    """

    def __init__(self, params: Fields, rows: int) -> None:
        self.new = version("sglang") != "0.5.12"
        self.params, self.page = params, params["page_size"]
        self.torch: Any = import_module("torch")
        self.batches: Any = import_module("sglang.srt.managers.schedule_batch")
        self.policies: Any = import_module("sglang.srt.managers.schedule_policy")
        self.types: Any = import_module("sglang.srt.mem_cache.base_prefix_cache")
        self.radix: Any = import_module("sglang.srt.mem_cache.radix_cache")
        self.arguments = self._configure()
        self._stand_in_for_sampling()
        pools: Any = import_module("sglang.srt.mem_cache.memory_pool")
        self.pool = pools.ReqToTokenPool(rows, params.get("context_len", 1024) + 8, "cpu", False)
        self.tokens = params["kv_tokens"] // self.page * self.page
        self.allocator = self._allocator()
        self.evicted: list[int] = []
        self.tree = self._tree()
        self._watch_evictions()

    def _configure(self) -> Any:
        """The arguments of a server, as far as this version's scheduling looks at them."""
        p = self.params
        own = {
            "page_size": self.page,
            "disable_radix_cache": p.get("disable_radix_cache", False),
            "schedule_conservativeness": p.get("schedule_conservativeness", 1.0),
            "chunked_prefill_size": p.get("chunked_prefill_size"),
            "enable_mixed_chunk": p.get("enable_mixed_chunk", False),
            "attention_backend": "torch_native",
            "device": "cpu",
        }
        if self.new:
            context: Any = import_module("sglang.srt.runtime_context").get_context()
            own["radix_eviction_policy"] = p.get("eviction_policy", "lru")
            own["retraction_policy"] = p.get("retraction_policy", "length")
            own["schedule_policy"] = p.get("schedule_policy", "fcfs")
            own["pp_max_micro_batch_size"] = p.get("max_running_requests", 1)
            own |= {"enable_priority_scheduling": _by_priority(p), "disable_priority_preemption": True}
            return context.override_server_args(**own).install()
        found: Any = import_module("sglang.srt.server_args")
        lacking = {
            "pp_max_micro_batch_size": p.get("max_running_requests", 1),
            "enable_dynamic_chunking": False,
            "enable_mamba_extra_buffer": lambda: False,
            "disaggregation_mode": "null",
            "dp_size": 1,
            "tp_size": 1,
            "pp_size": 1,
            "decode_log_interval": 1 << 30,
        }
        found._global_server_args = Open(**own, **lacking)
        return found._global_server_args

    def _stand_in_for_sampling(self) -> None:
        self.batches.SamplingBatchInfo.from_schedule_batch = classmethod(lambda kind, *_, **__: _Sampling())
        for name in dir(self.policies):  # context parallelism, whose module asks a GPU
            if "prefill_cp" in name or "context_parallel" in name:
                setattr(self.policies, name, lambda *_, **__: False)

    # ------------------------------------------------------------ memory

    def _allocator(self) -> Any:
        names = ("token", "paged") if self.new else ("", "")
        places: list[Any] = [
            import_module("sglang.srt.mem_cache.allocator" + (f".{name}" if name else "")) for name in names
        ]
        dtype, cpu = self.torch.float16, "cpu"
        if self.page == 1:
            return places[0].TokenToKVPoolAllocator(self.tokens, dtype, cpu, Quiet(), False)
        if not self.new:
            places[1].alloc_extend_kernel = _ExtendLoop(places[1].alloc_extend_naive)
            places[1].alloc_decode_kernel = _DecodeLoop()
        made = places[1].PagedTokenToKVPoolAllocator(self.tokens, self.page, dtype, cpu, Quiet(), False)
        made.use_triton_kernels = False
        return made

    def _tree(self) -> Any:
        init: Any = import_module("sglang.srt.mem_cache.cache_init_params")
        self._count_instead_of_a_clock()
        disabled = self.params.get("disable_radix_cache", False)
        made = call(
            init.CacheInitParams,
            disable=disabled,
            req_to_token_pool=self.pool,
            token_to_kv_pool_allocator=self.allocator,
            page_size=self.page,
            eviction_policy=self.params.get("eviction_policy", "lru"),
            eviction_policy_config=self.params.get("eviction_policy_config"),
        )
        if not self.new:
            plain: Any = import_module("sglang.srt.mem_cache.chunk_cache").ChunkCache
            return plain(made) if disabled else self.radix.RadixCache(made)
        kinds: Any = import_module("sglang.srt.mem_cache.unified_cache.component_type")
        made.tree_components = (kinds.ComponentType.FULL,)
        return import_module("sglang.srt.mem_cache.unified_radix_cache").UnifiedRadixCache(made)

    def _count_instead_of_a_clock(self) -> None:
        """0.5.12 stamps with the time of day; 0.5.23 counts by itself."""
        if not self.new:
            ticks = count(1)
            vars(self.radix)["time"] = Open(
                monotonic=lambda: next(ticks), time=lambda: next(ticks), perf_counter=lambda: 0.0
            )

    def _watch_evictions(self) -> None:
        if self.params.get("disable_radix_cache", False):
            return
        if self.new:
            drain = self.tree._apply_eviction_result

            def watched(result: Any) -> Any:
                freed = [sum(len(v) for v in values) for values in result.device_frees.values()]
                self.evicted += [n for n in freed if n]
                return drain(result)

            self.tree._apply_eviction_result = watched
        else:
            delete = self.tree._delete_leaf

            def noted(node: Any) -> Any:
                self.evicted.append(len(node.key))
                return delete(node)

            self.tree._delete_leaf = noted

    def sizes(self) -> list[int]:
        """Free, evictable and protected tokens."""
        return [
            int(n) for n in (self.allocator.available_size(), self.tree.evictable_size(), self.tree.protected_size())
        ]

    # ------------------------------------------------------------ requests

    def ids(self, tokens: list[int]) -> Any:
        return import_module("array").array("q", tokens) if self.new else list(tokens)

    def key(self, tokens: list[int], namespace: str | None) -> Any:
        return self.radix.RadixKey(self.ids(tokens), namespace)

    def request(self, name: str, spec: Fields, ignore_eos: bool = False) -> Any:
        sampling: Any = import_module("sglang.srt.sampling.sampling_params").SamplingParams
        wanted = sampling(max_new_tokens=spec["max_tokens"], temperature=0, ignore_eos=ignore_eos)
        wanted.normalize(None)
        made = call(
            self.batches.Req,
            rid=name,
            origin_input_text="",
            origin_input_ids=self.ids(spec["prompt"]),
            sampling_params=wanted,
            vocab_size=1 << 20,
            extra_key=spec.get("ns"),
            priority=spec.get("priority"),
        )
        made.tokenizer, made.time_stats = None, _Stamps()
        return made

    def says(self, request: Any, tokens: list[int]) -> None:
        """Outputs that a request has already."""
        request.output_ids = self.ids(tokens)


class _Stamps(Quiet):
    """A request's clock: only when it joined the waiting list decides anything."""

    entries = count(1)

    def __init__(self) -> None:
        self.wait_queue_entry_time = 0

    def set_wait_queue_entry_time(self, *_: Any, **__: Any) -> None:
        self.wait_queue_entry_time = next(self.entries)


def _by_priority(params: Fields) -> bool:
    return params.get("schedule_policy") == "priority" or params.get("retraction_policy") == "priority"


class _ExtendLoop:
    """The paged allocator's kernel for prefills, by the package's own loop."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop

    def __getitem__(self, grid: Any) -> Any:
        def run(before: Any, after: Any, last: Any, free: Any, out: Any, _: int, page: int) -> None:
            pages = ((after + page - 1) // page - (before + page - 1) // page).sum().item()
            if pages <= len(free):
                self.loop(before, after, last, free, out, page, "cpu")

        return run


class _DecodeLoop:
    """The same for decodes: a new page where a token opens one, else the next slot."""

    def __getitem__(self, grid: Any) -> Any:
        def run(after: Any, last: Any, free: Any, out: Any, _: int, page: int) -> None:
            taken = 0
            for i, length in enumerate(after.tolist()):
                if (length - 1) % page:
                    out[i] = int(last[i]) + 1
                elif taken < len(free):
                    out[i] = int(free[taken]) * page
                    taken += 1

        return run
