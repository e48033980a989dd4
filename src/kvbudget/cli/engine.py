"""Decides how the embedded engine is run as a program: its flags, its start check and its ready line."""

import argparse
import asyncio
import contextlib
import json
import signal
import sys

import uvloop

from kvbudget.cli.main import EXIT_FINDING, EXIT_GOOD
from kvbudget.cli.output import written_out
from kvbudget.edge.engine.server import RunningEngine, start_engine
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.simulate.engine_start import start_refusal
from kvbudget.units import parse_length

EPILOG = """\
A token is one started 4 bytes of UTF-8; a chat adds 4 tokens per message and 3 for the answer. `usage` and /tokenize
follow the same rule. Answers follow from the prompt alone, so the same request gets the same text.

examples:
  kvbudget engine
  kvbudget engine --num-blocks 65 --block-size 32 --max-model-len 1024 --step-cost 0.02
  kvbudget engine --port 0 --json --deterministic        # a free port, told in one JSON line; for tests
  curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "stream": true}'

exit: 0 stopped by SIGINT or SIGTERM, 1 one request of max-model-len does not fit the pool, 2 bad flags
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags; names as vLLM's where it has them."""
    default = EngineSettings()
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="port, 0 for any free one (8000)")
    parser.add_argument(
        "--num-blocks",
        type=int,
        default=default.num_blocks,
        help=f"KV blocks of the pool, the null block included as in vLLM ({default.num_blocks})",
    )
    parser.add_argument(
        "--block-size", type=int, default=default.block_size, help=f"tokens per block ({default.block_size})"
    )
    parser.add_argument(
        "--max-model-len", default=str(default.max_model_len), help=f"window: 8192, 8k ({default.max_model_len})"
    )
    parser.add_argument(
        "--max-num-seqs", type=int, default=default.max_num_seqs, help=f"running at once ({default.max_num_seqs})"
    )
    parser.add_argument(
        "--max-num-batched-tokens",
        type=int,
        default=default.max_num_batched_tokens,
        help=f"tokens per step ({default.max_num_batched_tokens})",
    )
    parser.add_argument("--step-cost", type=float, default=0.01, metavar="SECONDS", help="length of a step (0.01)")
    parser.add_argument(
        "--token-cost", type=float, default=0.0, metavar="SECONDS", help="added per token scheduled in a step (0)"
    )
    parser.add_argument(
        "--mean-output-tokens",
        type=int,
        default=default.mean_output_tokens,
        help=f"where answers end by themselves, on average ({default.mean_output_tokens})",
    )
    parser.add_argument(
        "--served-model-name",
        default=default.served_model_name,
        help=f"name that requests use as `model` ({default.served_model_name})",
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="same request, same bytes: fixed ids and `created`"
    )
    parser.add_argument("--json", action="store_true", help="the ready line as one JSON document")


def run(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; returns 0, or 1 when the pool is too small for the window."""
    settings = EngineSettings(
        num_blocks=args.num_blocks,
        block_size=args.block_size,
        max_model_len=parse_length(args.max_model_len, "--max-model-len"),
        max_num_seqs=args.max_num_seqs,
        max_num_batched_tokens=args.max_num_batched_tokens,
        step_cost_s=args.step_cost,
        token_cost_s=args.token_cost,
        served_model_name=args.served_model_name,
        mean_output_tokens=args.mean_output_tokens,
        deterministic=args.deterministic,
    )
    refusal = start_refusal(settings.layout, settings.num_blocks, settings.max_model_len)
    if refusal:
        print(f"kvbudget engine: {refusal}. Raise --num-blocks or lower --max-model-len.", file=sys.stderr)
        return EXIT_FINDING
    with contextlib.suppress(KeyboardInterrupt):  # a SIGINT before the handlers stand
        uvloop.run(_serve(settings, args.host, args.port, args.json))
    return EXIT_GOOD


async def _serve(settings: EngineSettings, host: str, port: int, as_json: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    engine = await start_engine(settings, host, port)
    try:
        with written_out():
            print(_ready_line(engine, as_json))
        await stop.wait()
    finally:
        await engine.close()


def _ready_line(engine: RunningEngine, as_json: bool) -> str:
    settings = engine.settings
    usable_blocks = settings.num_blocks - 1
    if as_json:
        return json.dumps(
            {
                "schema": "kvbudget.engine/1",
                "url": engine.url,
                "host": engine.host,
                "port": engine.port,
                "model": settings.served_model_name,
                "num_blocks": settings.num_blocks,
                "usable_blocks": usable_blocks,
                "block_size": settings.block_size,
                "max_model_len": settings.max_model_len,
            }
        )
    return (
        f"engine ready on {engine.url}  model {settings.served_model_name}, {usable_blocks} usable blocks of "
        f"{settings.block_size} tokens, window {settings.max_model_len}"
    )
