"""`kvbudget plan`: decides what the flags mean, and prints the plan for people or as one JSON document.

With --json nothing outside the standard library is imported: it runs in CI and at engine start.
"""

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any

from kvbudget.cli.output import written_out
from kvbudget.edge.hub.folder import Checkpoint, read_checkpoint
from kvbudget.engines.flags import AUTO_LENGTH, EngineFlags
from kvbudget.engines.registry import DEFAULT_ENGINE
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.read import Model, model_from_config
from kvbudget.plan.build import make_plan
from kvbudget.plan.document import plan_json
from kvbudget.plan.gpus import gpu_named
from kvbudget.plan.lengths import parse_lengths
from kvbudget.plan.request import Amount, Plan, PlanRequest
from kvbudget.units import MIB, Bytes, parse_length, parse_size

EPILOG = """\
examples:
  kvbudget plan ./Llama-3.1-8B --gpu h100
  kvbudget plan docs/examples/llama-3.1-8b --gpu h100 --max-model-len 8k     # from a clone, nothing to download
  kvbudget plan ./config.json --gpu-memory 24GiB --weights 16GiB --overhead 2GiB --max-model-len 8k
  kvbudget plan ./Qwen3-32B --gpu h100 --gpus 2 -tp 2 --kv-cache-dtype fp8 --explain
  kvbudget plan ./Qwen3-8B --kv-cache-memory-bytes 24GiB --max-model-len 32k --json
  kvbudget plan ./Qwen3-8B --gpu l40s --prompt-lengths p50=800,p95=4000,p99=8000 --output-lengths p50=200,p95=900,p99=2k

sizes: 24GiB (1024-based), 80GB (1000-based) or bytes; lengths: 8192, 8k (= 8192), 1m. All results are per GPU.
exit: 0 fits; 1 does not fit, or misses --target-concurrency; 2 usage, or a model that is not known, or stdout that
cannot be written."""

# Flags of the contract that later versions bring: named when used, never ignored.
_LATER = {
    "--decode-context-parallel-size": "context-parallel ranks",
    "--mamba-ssm-cache-dtype": "recurrent-state layers",
    "--speculative-config": "draft layers",
    "--command": "reading a whole engine command line",
    "--trace": "lengths from a trace",
    "--margin": "margins",
    "--price-per-hour": "cost",
    "--markdown": "the Markdown report",
    "--html": "the HTML report",
    "--png": "the PNG chart",
    "--write": "the budget file",
}


# Nothing that the flags below describe is smaller; a number that lost its unit is.
_LEAST_SIZE = MIB
_NONE_IS_A_SIZE = ("--activation", "--overhead")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; engine flags carry vLLM's own names."""
    parser.usage = "%(prog)s MODEL [flags]   (%(prog)s --help shows them)"
    _refuse_unknown_flags(parser)
    parser.add_argument("model", metavar="MODEL", help="folder with config.json, or a config.json")
    memory = parser.add_argument_group("memory")
    memory.add_argument("--gpu", metavar="NAME", help="a known card, by its true memory: h100, l40s, rtx-4090, ...")
    memory.add_argument("--gpus", type=int, metavar="N", help="how many cards there are")
    memory.add_argument("--gpu-memory", metavar="SIZE", help="memory of one card as its driver reports it")
    memory.add_argument("--gpu-memory-utilization", type=float, metavar="F", help="share of the total (vLLM: 0.92)")
    memory.add_argument("--kv-cache-memory-bytes", metavar="SIZE", help="the pool itself, per GPU; skips all else")
    memory.add_argument("--weights", metavar="SIZE", help="of the whole checkpoint; split over the ranks")
    memory.add_argument("--activation", metavar="SIZE", help="peak of one forward, per GPU, from a start-up log")
    memory.add_argument("--overhead", metavar="SIZE", help="CUDA graphs and non-torch memory, per GPU")
    engine = parser.add_argument_group("engine")
    engine.add_argument("--engine", default=DEFAULT_ENGINE, metavar="NAME@VERSION", help=f"default {DEFAULT_ENGINE}")
    engine.add_argument("--max-model-len", metavar="N", help="tokens, or auto for the largest that fits")
    engine.add_argument("--max-num-seqs", type=int, metavar="N", help="requests that may run at once")
    engine.add_argument("--max-num-batched-tokens", type=int, metavar="N", help="tokens of one step")
    engine.add_argument("--block-size", type=int, metavar="N", help="tokens in a block (vLLM: 16)")
    engine.add_argument("--dtype", default="auto", metavar="T", help="auto, bfloat16, float16, float32")
    engine.add_argument(
        "--kv-cache-dtype", default="auto", metavar="T", help="auto, bfloat16, float16, fp8, fp8_e4m3, ..."
    )
    engine.add_argument(
        "--tensor-parallel-size", "-tp", type=int, default=1, metavar="N", help="ranks that split layers"
    )
    engine.add_argument("--pipeline-parallel-size", "-pp", type=int, default=1, metavar="N", help="stages of layers")
    engine.add_argument("--num-gpu-blocks-override", type=int, metavar="N", help="blocks, whatever the memory")
    engine.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="no effect on a uniform pool",
    )
    engine.add_argument(
        "--async-scheduling", action=argparse.BooleanOptionalAction, default=None, help="vLLM's default: on"
    )
    engine.add_argument("--disable-hybrid-kv-cache-manager", action="store_true", help="no effect on uniform models")
    workload = parser.add_argument_group("workload")
    workload.add_argument("--prompt-lengths", metavar="P", help="p50=800,p95=4000,p99=8000")
    workload.add_argument("--output-lengths", metavar="P", help="the same for generated tokens")
    workload.add_argument("--target-concurrency", type=int, metavar="N", help="full-length requests wanted at once")
    output = parser.add_argument_group("output")
    output.add_argument("--json", action="store_true", help="one JSON document (schema kvbudget.plan/1)")
    output.add_argument("--explain", action="store_true", help="show the arithmetic line by line")
    for flag in _LATER:
        short = ("-dcp",) if flag == "--decode-context-parallel-size" else ()
        parser.add_argument(flag, *short, dest=_later_name(flag), help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Plan and print; 0 when it fits, 1 when not. Raises InputError for what cannot be planned."""
    _refuse_later_flags(args)
    checkpoint = read_checkpoint(args.model)
    model = model_from_config(checkpoint.config, checkpoint.name)
    plan = make_plan(_request(args, model, checkpoint))
    with written_out():
        if args.json:
            document = plan_json(plan)
            if args.explain:
                document["explain"] = _explained(plan)
            print(json.dumps(document, allow_nan=False))
        else:
            _print_text(plan, _explained(plan) if args.explain else [])
    return 0 if plan.fits else 1


def _request(args: argparse.Namespace, model: Model, checkpoint: Checkpoint) -> PlanRequest:
    flags = EngineFlags(
        max_model_len=_length(args.max_model_len),
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        block_size=args.block_size,
        dtype=args.dtype,
        kv_cache_dtype=args.kv_cache_dtype,
        tensor_parallel_size=args.tensor_parallel_size,
        pipeline_parallel_size=args.pipeline_parallel_size,
        gpu_memory_utilization=args.gpu_memory_utilization,
        async_scheduling=args.async_scheduling,
        enable_prefix_caching=args.enable_prefix_caching,
        num_gpu_blocks_override=args.num_gpu_blocks_override,
    )
    prompt, output = args.prompt_lengths, args.output_lengths
    return PlanRequest(
        model=model,
        engine=args.engine,
        flags=flags,
        gpu=gpu_named(args.gpu) if args.gpu is not None else None,
        gpus=args.gpus,
        gpu_memory=_size(args.gpu_memory, "--gpu-memory"),
        kv_cache_memory=_size(args.kv_cache_memory_bytes, "--kv-cache-memory-bytes"),
        weights=_weights(args, model, checkpoint),
        activation=_size(args.activation, "--activation"),
        overhead=_size(args.overhead, "--overhead"),
        prompt_lengths=parse_lengths(prompt, "--prompt-lengths") if prompt is not None else None,
        output_lengths=parse_lengths(output, "--output-lengths") if output is not None else None,
        target_concurrency=args.target_concurrency,
    )


def _weights(args: argparse.Namespace, model: Model, checkpoint: Checkpoint) -> Amount | None:
    given = _size(args.weights, "--weights")
    if given is not None:
        return Amount(given, "given", "--weights")
    if checkpoint.tensors is None:
        return None
    element_bytes = 4 if args.dtype in ("float32", "float") else 2
    size = checkpoint.tensors.loaded_bytes(element_bytes, quantised=model.quantization is not None)
    return Amount(Bytes(size), "measured", f"{checkpoint.tensors.files} safetensors file(s)")


def _size(text: str | None, flag: str) -> Bytes | None:
    """A size of memory. A number without its unit would be taken for bytes, and planned as if it were meant."""
    if text is None:
        return None
    size = parse_size(text, flag)
    if size >= _LEAST_SIZE or (size == 0 and flag in _NONE_IS_A_SIZE):
        return size
    number = re.sub(r"[^0-9.]", "", text)
    raise BadValueError(
        f"{flag}: {text.strip()[:40]!r} is {size} bytes, less than 1MiB",
        fix=f"did you mean {number}GiB?" if size else "leave it out, or write 24GiB or 80GB",
    )


def _length(text: str | None) -> int | None:
    if text is None:
        return None
    return AUTO_LENGTH if text in ("auto", "-1") else parse_length(text, "--max-model-len")


def _refuse_later_flags(args: argparse.Namespace) -> None:
    for flag, what in _LATER.items():
        value = getattr(args, _later_name(flag))
        if value is not None and (flag, value) != ("--decode-context-parallel-size", "1"):
            raise UnsupportedError(f"{flag} ({what}) is planned but not built yet", fix=f"leave {flag} out")


def _refuse_unknown_flags(parser: argparse.ArgumentParser) -> None:
    """The parser above this one would name a flag that is unknown here below a usage that shows no flags of `plan`."""
    parse = parser.parse_known_args

    def strict(args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, unknown = parse(args, namespace)
        if unknown:
            parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    parser.parse_known_args = strict  # type: ignore[method-assign, assignment]


def _later_name(flag: str) -> str:
    return "later" + flag.replace("-", "_")  # apart from the names that the command table itself uses


def _explained(plan: Plan) -> list[str]:
    from kvbudget.plan.explain import explain

    return explain(plan)


def _print_text(plan: Plan, explained: list[str]) -> None:
    from rich.console import Console

    from kvbudget.report.text import plan_report

    console = Console(highlight=False)
    # A line that is to be searched for in a log must be whole; crop would cut what is longer than the console.
    console.print(plan_report(plan, explained, unbroken_log_line=not console.is_terminal), crop=False)
