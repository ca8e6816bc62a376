"""Where an engine refuses to start, kvbench does: sizes that no server of it would run with.

source: `SchedulerConfig.verify_max_model_len` of vLLM 0.19 and 0.33, the server arguments of SGLang.
"""

from __future__ import annotations

from ..core.config import Config
from ..core.errors import UsageError
from ..scheduler.rules import TOKEN_BUDGET


def check_start(config: Config) -> None:
    """UsageError: the engine would not start. No size is open any more."""
    if config["batching"] == "static":
        return
    if config["scheduler.discipline"] == TOKEN_BUDGET:
        _check_vllm(config)
    else:
        _check_sglang(config)


def _check_vllm(config: Config) -> None:
    tokens, sequences = config["scheduler.max_num_batched_tokens"], config["scheduler.max_num_seqs"]
    longest, active = config["max_model_len"], config["scheduler.max_num_active_seqs"]
    threshold = config["scheduler.long_prefill_token_threshold"]
    if tokens < longest and not config["scheduler.enable_chunked_prefill"]:
        _refuse(
            config,
            "scheduler.max_num_batched_tokens",
            f"is less than max_model_len = {longest}, and without chunks a prompt has to fit in a step; "
            "raise it, lower max_model_len, or set scheduler.enable_chunked_prefill = true",
        )
    if tokens < sequences:
        _refuse(
            config,
            "scheduler.max_num_batched_tokens",
            f"is less than scheduler.max_num_seqs = {sequences}, which each decode a token in a step; "
            "raise the one or lower the other",
        )
    if active > sequences:
        _refuse(
            config,
            "scheduler.max_num_active_seqs",
            f"is more than scheduler.max_num_seqs = {sequences}; lower the one or raise the other",
        )
    # 0.33, which is the version that spares a lone request, checks this; 0.19 does not.
    if threshold > longest and not config["scheduler.long_prefill_threshold_when_alone"]:
        _refuse(config, "scheduler.long_prefill_token_threshold", f"is more than max_model_len = {longest}; lower it")


def _check_sglang(config: Config) -> None:
    chunk, page = config["scheduler.chunked_prefill_size"], config["block_tokens"]
    if config["scheduler.enable_chunked_prefill"] and chunk < page:
        _refuse(
            config,
            "scheduler.chunked_prefill_size",
            f"is less than a block of {page} tokens; raise it to at least that",
        )


def _refuse(config: Config, name: str, why: str) -> None:
    raise UsageError(f"{config.where[name]}: {name} = {config[name]} {why}")
