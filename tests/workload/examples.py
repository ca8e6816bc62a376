"""A small, right example of every trace format: written here, in the shape of the public ones."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from kvbench.workload.formats.kvbench import write

from .files import jsonl, load, row

US = 1_760_587_669_000_000


def lines(*rows: dict[str, Any]) -> bytes:
    return "".join(json.dumps(r) + "\n" for r in rows).encode()


def weka(**changed: Any) -> dict[str, Any]:
    """A session of three requests and a subagent of two, blocks of 4 tokens."""
    session: dict[str, Any] = {
        "id": "trace_0001", "block_size": 4, "hash_id_scope": "local", "tool_tokens": 6, "system_tokens": 2,
        "requests": [
            {"t": 0.0, "type": "n", "in": 9, "out": 3, "hash_ids": [1, 2], "api_time": 2.0},
            {"t": 12.0, "type": "s", "in": 14, "out": 5, "hash_ids": [1, 2, 3], "api_time": 3.0, "think_time": 10.0},
            {"t": 20.0, "type": "subagent", "duration_ms": 5000, "requests": [
                {"t": 0.0, "type": "n", "in": 8, "out": 2, "hash_ids": [7, 8], "think_time": 0.0, "api_time": 1.0},
                {"t": 3.0, "type": "n", "in": 12, "out": 2, "hash_ids": [7, 8, 9], "think_time": 2.0},
            ]},
            {"t": 21.0, "type": "n", "in": 3, "out": 1, "hash_ids": [], "think_time": 6.0},
        ],
    }  # fmt: skip
    return session | changed


def span(name: str, start: int, end: int, messages: list[dict[str, str]], **attributes: Any) -> dict[str, Any]:
    stamp = "2026-02-25T10:00:{:02d}.000000"
    return {
        "span_id": name,
        "start_time": stamp.format(start),
        "end_time": stamp.format(end),
        "attributes": {"gen_ai.input.messages": json.dumps(messages), **attributes},
    }


QUESTION = {"role": "user", "content": "What is the capital of Peru?"}
ANSWER = {"role": "assistant", "content": "Lima."}
MORE = {"role": "user", "content": "How many live there?"}

OTEL = {
    "trace_id": "t",
    "spans": [
        span("a", 0, 2, [QUESTION], **{"gen_ai.output.text": "Lima.", "exgentic.session.id": "s"}),
        span("b", 5, 6, [QUESTION, ANSWER, MORE], **{"gen_ai.output.text": "Ten million.", "exgentic.session.id": "s"}),
    ],
}

MULTI_TURN = {
    "filetype": "generate_conversations", "num_conversations": 5, "text_files": ["x.txt"],
    "prompt_input": {
        "num_turns": {"distribution": "uniform", "min": 3, "max": 6},
        "common_prefix_num_tokens": {"distribution": "constant", "value": 40},
        "prefix_num_tokens": {"distribution": "lognormal", "average": 30, "max": 90},
        "num_tokens": {"distribution": "zipf", "alpha": 1.5, "max": 50},
    },
    "prompt_output": {"num_tokens": {"distribution": "poisson", "alpha": 12, "max": 40}},
}  # fmt: skip

EXAMPLES: dict[str, bytes] = {
    "mooncake": lines(row(0, 600, 10, hash_ids=[0, 1]), row(7, 1_000, 3, hash_ids=[0, 2])),
    "bailian": lines(
        {"chat_id": 1, "parent_chat_id": -1, "timestamp": 0.25, "input_length": 33, "output_length": 4, "type": "text",
         "turn": 1, "hash_ids": [5, 6, 7]},
        {"chat_id": 2, "parent_chat_id": 1, "timestamp": 3.5, "input_length": 64, "output_length": 9, "type": "text",
         "turn": 2, "hash_ids": [5, 6, 8, 9]},
    ),
    "weka": json.dumps(weka()).encode(),
    "azure": b"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n"
    b"2023-11-16 18:17:04.0319600,3180,8",
    "burstgpt": b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,0,0,0,API log\n118,GPT-4,417,276,693,Conversation log\n",
    "lengths": b"num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n100,20,120,5.0\n7,3,10,2.33\n",
    "llmservingsim": lines(
        {"input_toks": 3, "output_toks": 2, "arrival_time_ns": 50, "input_tok_ids": [1, 2, 3],
         "output_tok_ids": [4, 5]},
        {"session_id": "a", "arrival_time_ns": 10, "sub_requests": [
            {"input_toks": 8, "output_toks": 2, "tool_duration_ns": 99}, {"input_toks": 12, "output_toks": 1}]},
    ),
    "tracelab": b"session_id,arrival_time,round_idx,prefix_len,input_len,output_len,tool_wait_after_ms\n"
    b"0,0,0,0,512,64,100\n0,0,1,576,128,64,0\n1,200,0,9,400,48,80\n",
    "aiperf": lines(
        {"text": "Hello there", "output_length": 4, "timestamp": 0},
        {"session_id": "m", "turns": [
            {"text": "Name a river.", "output_length": 3, "timestamp": 100},
            {"text": "Another one.", "output_length": 5, "delay": 250}]},
    ),
    "vllm-custom": lines({"prompt": "Write a poem.", "output_tokens": 30}, {"prompt": "Count.", "output_tokens": 7}),
    "vllm-multi-turn": json.dumps(MULTI_TURN, indent=2).encode(),
    "openai": lines({"messages": [QUESTION], "max_tokens": 5}, {"messages": [QUESTION, ANSWER, MORE], "max_tokens": 9}),
    "sharegpt": json.dumps([{"id": "x", "conversations": [
        {"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello!"},
        {"from": "human", "value": "Bye"}, {"from": "gpt", "value": "See you."}]}]).encode(),
    "lmcache": lines(
        {"timestamp": US + 2_000, "input": "system: short. user: hi. assistant: hi.", "output": "", "session_id": "s"},
        {"timestamp": US, "input": "system: short. user: hi.", "output": "hi.", "session_id": "s"},
    ),
    "otel": json.dumps(OTEL, indent=1).encode(),
    "openai-batch": lines(
        {"custom_id": "r0", "method": "POST", "url": "/v1/chat/completions",
         "body": {"model": "m", "messages": [QUESTION], "max_completion_tokens": 5}},
        {"custom_id": "r1", "method": "POST", "url": "/v1/completions",
         "body": {"model": "m", "prompt": "Count.", "max_tokens": 9}},
    ),
    "litellm": lines(
        {"id": "b", "call_type": "acompletion", "startTime": 1_751_041_476.25, "endTime": 1_751_041_477.2,
         "prompt_tokens": 60, "completion_tokens": 9, "messages": [QUESTION, ANSWER, MORE], "status": "success"},
        {"id": "a", "call_type": "acompletion", "startTime": 1_751_041_475.0, "endTime": 1_751_041_478.2,
         "prompt_tokens": 35, "completion_tokens": 169, "messages": [QUESTION], "status": "success"},
    ),
    "aiperf-profile": lines(
        {"metadata": {"request_start_ns": US * 1000 + 2_000_000, "conversation_id": "c"},
         "metrics": {"input_sequence_length": {"value": 60, "unit": "tokens"},
                     "output_sequence_length": {"value": 9, "unit": "tokens"}}},
        {"metadata": {"request_start_ns": US * 1000, "conversation_id": "c", "benchmark_phase": "profiling"},
         "metrics": {"input_sequence_length": {"value": 35, "unit": "tokens"},
                     "output_sequence_length": {"value": 16, "unit": "tokens"}}},
    ),
    "bench-result": json.dumps(
        {"backend": "vllm", "request_throughput": 1.0, "input_lens": [10, 20, 30], "output_lens": [5, 0, 7],
         "start_times": [100.5, 101.0, 100.75], "ttfts": [0.1, 0.0, 0.2], "errors": ["", "timeout", ""]}).encode(),
    "blis": b"request_id,session_id,round_index,prefix_group,prefix_length,input_tokens,output_tokens,arrival_time_us,"
    b"status\n0,s1,0,shared,64,10,5,0,ok\n1,,0,shared,64,12,6,250000,ok\n2,,0,,0,30,7,300000,timeout\n",
    "tracelab-rounds": lines(
        {"session_id": "s", "round_index": 0, "prefix_tokens": 100, "newly_append_tokens": 50, "output_tokens": 20,
         "timing_events": [{"event_type": "user_message", "timestamp": "2026-06-01T05:40:20.000Z"},
                           {"event_type": "tool_call", "timestamp": "2026-06-01T05:40:24.000Z"}]},
        {"session_id": "s", "round_index": 1, "prefix_tokens": 150, "newly_append_tokens": 40, "output_tokens": 30,
         "timing_events": [{"event_type": "tool_result", "timestamp": "2026-06-01T05:40:25.500Z"},
                           {"event_type": "text", "timestamp": "2026-06-01T05:40:27.000Z"}]},
    ),
}  # fmt: skip
"""Format -> content. ServeGen is a folder: `servegen_folder`."""

TEXTS = ("aiperf", "vllm-custom", "openai", "openai-batch", "sharegpt", "lmcache", "otel")
"""Formats that hold text."""


def example(folder: Path, name: str, packed: bool = False) -> Path:
    """A file whose name says nothing of its format."""
    path = folder / "trace"
    path.write_bytes(gzip.compress(EXAMPLES[name]) if packed else EXAMPLES[name])
    return path


def options_for(name: str) -> dict[str, Any]:
    return {"chars_per_token": 4.0} if name in TEXTS else {}


def servegen_folder(folder: Path) -> Path:
    """Two clients, two windows; the second client is idle in the first."""
    (folder / "chunk-0-trace.csv").write_text("0,0.5,1.0,Gamma,1.0,2.0\n600,0.25,2.0,Weibull,0.7,3.0\n")
    (folder / "chunk-1-trace.csv").write_text("0,0,0,,0,0\n600,1,1,,0,0\n")
    table = {"input_tokens": "{100: 0.5, 300: 0.5}", "output_tokens": "{7: 1.0}"}
    idle = {"input_tokens": "{}", "output_tokens": "{}"}
    (folder / "chunk-0-dataset.json").write_text(json.dumps({"0": table, "600": idle}))
    (folder / "chunk-1-dataset.json").write_text(json.dumps({"0": idle, "600": table}))
    return folder


def own_form(folder: Path, requests: Any) -> Path:
    path = folder / "own"
    path.write_text("".join(write(requests)), "utf-8")
    return path


def of_text(folder: Path, text: str, **options: Any) -> Any:
    """Requests of a file with this text."""
    return load(jsonl(folder, text), **options)
