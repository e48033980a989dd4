"""Decides which flags `kvbudget plan` has. Engine flags carry vLLM's names; no default stands here, so that a flag
given can be told from one left out, and beats what --command says."""

import argparse
from typing import Any

from kvbudget.units import any_number, whole_number

ON_OR_OFF = argparse.BooleanOptionalAction
_LONGEST_NUMBER = 40


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare them all; None means not given."""
    parser.usage = "%(prog)s MODEL [flags]   (%(prog)s --help shows them)"
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help="folder with config.json, a config.json, a .gguf, or a hub id"
    )
    parser.add_argument("--assume", metavar="full", help="read an unknown model as full attention, on purpose")
    _add_memory(parser.add_argument_group("memory"))
    _add_engine(parser.add_argument_group("engine"))
    _add_other_engines(parser.add_argument_group("engines other than vLLM"))
    _add_workload(parser.add_argument_group("workload and wishes"))
    _add_output(parser.add_argument_group("output"))


def _add_memory(memory: Any) -> None:
    memory.add_argument("--gpu", metavar="NAME", help="a known card, by its true memory: h100, l40s, h100:8, ...")
    memory.add_argument("--gpus", type=_whole, metavar="N", help="how many cards there are")
    memory.add_argument("--gpu-memory", metavar="SIZE", help="memory of one card as its driver reports it")
    memory.add_argument("--gpu-memory-utilization", type=_number, metavar="F", help="share of the total (vLLM: 0.92)")
    memory.add_argument("--kv-cache-memory-bytes", metavar="SIZE", help="the pool itself, per GPU; skips all else")
    memory.add_argument("--weights", metavar="SIZE", help="of the whole checkpoint; split over the ranks")
    memory.add_argument("--activation", metavar="SIZE", help="peak of one forward, per GPU, from a start-up log")
    memory.add_argument("--receipts", metavar="FILE", help="kvbudget.toml whose receipts move the estimates to yours")
    memory.add_argument("--overhead", metavar="SIZE", help="CUDA graphs and non-torch memory, per GPU")


def _add_engine(engine: Any) -> None:
    engine.add_argument("--engine", metavar="NAME@VERSION", help="vllm@0.32 (default), sglang, tgi, trtllm, llamacpp")
    engine.add_argument(
        "--command", dest="command_line", metavar="TEXT|FILE", help="a whole engine command, shell, Compose, Kubernetes"
    )
    engine.add_argument("--command-name", metavar="NAME", help="which of several commands: service, container, line 19")
    engine.add_argument("--max-model-len", metavar="N", help="tokens, or auto for the largest that fits")
    engine.add_argument("--max-num-seqs", type=_whole, metavar="N", help="requests that may run at once")
    engine.add_argument("--max-num-batched-tokens", type=_whole, metavar="N", help="tokens of one step")
    engine.add_argument("--block-size", type=_whole, metavar="N", help="tokens in a block (vLLM: 16)")
    engine.add_argument("--dtype", metavar="T", help="auto, bfloat16, float16, float32")
    engine.add_argument("--kv-cache-dtype", metavar="T", help="auto, bfloat16, fp8, nvfp4, ...; llama.cpp: of keys")
    engine.add_argument("--tensor-parallel-size", "-tp", type=_whole, metavar="N", help="ranks that split layers")
    engine.add_argument("--pipeline-parallel-size", "-pp", type=_whole, metavar="N", help="stages of layers")
    engine.add_argument("--pp-layer-partition", metavar="N,N", help="layers of each stage (VLLM_PP_LAYER_PARTITION)")
    engine.add_argument(
        "--decode-context-parallel-size", "-dcp", type=_whole, metavar="N", help="ranks that share a sequence"
    )
    engine.add_argument(
        "--data-parallel-size", "-dp", type=_whole, metavar="N", help="engines beside one another; experts are shared"
    )
    engine.add_argument(
        "--enable-expert-parallel", "-ep", action=ON_OR_OFF, help="ranks of all engines share whole experts out"
    )
    engine.add_argument("--num-gpu-blocks-override", type=_whole, metavar="N", help="blocks, whatever the memory")
    engine.add_argument(
        "--enable-prefix-caching", action=ON_OR_OFF, help="vLLM's default: on; recurrent states cost more blocks then"
    )
    engine.add_argument("--enable-chunked-prefill", action=ON_OR_OFF, help="vLLM's default: on")
    engine.add_argument("--async-scheduling", action=ON_OR_OFF, help="vLLM's default: on")
    engine.add_argument(
        "--disable-hybrid-kv-cache-manager", action="store_const", const=True, help="every layer keeps all tokens"
    )
    engine.add_argument("--mamba-cache-dtype", metavar="T", help="of convolution states: auto, float32, bfloat16")
    engine.add_argument("--mamba-ssm-cache-dtype", metavar="T", help="of recurrent states: auto, float32, bfloat16")
    engine.add_argument(
        "--speculative-config", metavar="JSON", help="method, num_speculative_tokens, model (folder), as vLLM's"
    )
    engine.add_argument("--hf-overrides", metavar="JSON", help="set in config.json before it is read, as vLLM's")
    engine.add_argument(
        "--allow-long-max-model-len", action="store_const", const=True, help="VLLM_ALLOW_LONG_MAX_MODEL_LEN=1"
    )
    engine.add_argument("--enforce-eager", action="store_const", const=True, help="no CUDA graphs")


def _add_other_engines(other: Any) -> None:
    other.add_argument("--value-cache-dtype", metavar="T", help="llama.cpp --cache-type-v: of values")
    other.add_argument("--kv-unified", action=ON_OR_OFF, help="llama.cpp: one pool of cells for all slots")
    other.add_argument(
        "--swa-full", action="store_const", const=True, help="llama.cpp: sliding layers keep the whole context"
    )
    other.add_argument("--gpu-layers", type=_whole, metavar="N", help="llama.cpp --n-gpu-layers")
    other.add_argument("--tensor-split", metavar="S,S", help="llama.cpp: shares of the cards: 3,1")
    other.add_argument("--micro-batch", type=_whole, metavar="N", help="llama.cpp --ubatch-size")
    other.add_argument("--max-pool-tokens", type=_whole, metavar="N", help="SGLang --max-total-tokens")


def _add_workload(workload: Any) -> None:
    workload.add_argument("--prompt-lengths", metavar="P", help="p50=800,p95=4000,p99=8000, or one length")
    workload.add_argument("--output-lengths", metavar="P", help="the same for generated tokens")
    workload.add_argument("--trace", metavar="FILE", help="lengths of real requests: Azure, Mooncake, JSONL, logs")
    workload.add_argument("--trace-format", metavar="F", help="azure, mooncake, csv, jsonl, usage, vllm, histogram")
    workload.add_argument("--arrival-rate", type=_number, metavar="R", help="requests a second, for this engine")
    workload.add_argument("--seconds-per-token", type=_number, metavar="S", help="of one request while decoding")
    workload.add_argument("--prefill-tokens-per-s", type=_number, metavar="R", help="of the whole engine")
    workload.add_argument("--margin", metavar="M", help="of the pool kept back: 5%%, 0.05, or 512 blocks")
    workload.add_argument(
        "--target-concurrency", type=_whole, metavar="N", help="requests wanted at once, of p95 or full length"
    )
    workload.add_argument("--advise", action="store_true", help="what to change, cheapest first, with new numbers")
    workload.add_argument(
        "--solve",
        metavar="GOAL",
        help="smallest or largest that is enough: gpus, max-model-len, concurrency, ... or all",
    )
    workload.add_argument("--long-context", metavar="N", help="what a request of N tokens costs: 1m")
    workload.add_argument(
        "--offload", nargs="?", const="usual", metavar="TIERS", help="what-ifs: tiers (cpu=256GiB), compression"
    )
    workload.add_argument("--head-needs", metavar="N,N", help="what-if: tokens kept by need of each KV head (Ada-KV)")
    workload.add_argument("--price-per-hour", type=_number, metavar="P", help="of one GPU; adds cost per 1M tokens")


def _add_output(output: Any) -> None:
    output.add_argument("--json", action="store_true", help="one JSON document (schema kvbudget.plan/1)")
    output.add_argument("--explain", action="store_true", help="show the arithmetic line by line")
    output.add_argument("--markdown", metavar="FILE", help="a report to attach to a review")
    output.add_argument("--html", metavar="FILE", help="the same, one self-contained page")
    output.add_argument("--png", metavar="FILE", help="a picture: memory, and requests against length")
    output.add_argument("--write", metavar="FILE", help="the budget as a file to review: kvbudget.toml")


def _whole(text: str) -> int:
    """As int(), but an error shows no more of a long text than people read."""
    try:
        if len(text) <= _LONGEST_NUMBER:
            return whole_number(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text[:_LONGEST_NUMBER]!r} is not a whole number of sensible size")


def _number(text: str) -> float:
    try:
        if len(text) <= _LONGEST_NUMBER:
            return any_number(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text[:_LONGEST_NUMBER]!r} is not a number of sensible size")
