"""The planner's list of vLLM flags is the engine's own, and a command line means to both the same."""

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvbudget.edge.launch.read import read_commands
from kvbudget.engines.commands.vllm import TABLE
from kvbudget.engines.commands.vllm_releases import refused_by

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(os.environ.get("KVBUDGET_ENGINE_VENV", ROOT / ".venv-engine"))
_PARSER = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

parser = make_arg_parser(FlexibleArgumentParser())
options = [[a.option_strings, type(a).__name__, a.nargs] for a in parser._actions if a.option_strings]
lines = json.load(sys.stdin)
values = []
for line in lines:
    found = vars(parser.parse_args(line))
    values.append({k: v for k, v in found.items() if isinstance(v, (str, int, float, dict, type(None)))})
print("RESULT" + json.dumps([options, values], default=str))
"""
LINES = [
    "org/m --max-model-len 8k --max-num-batched-tokens 16K -tp 2 --gpu_memory_utilization=0.85",
    "org/m --max-model-len 25.6k --kv-cache-memory-bytes 2.5g --no-enable-prefix-caching -q awq",
    "org/m --max-model-len auto --speculative-config.method mtp --speculative-config.num_speculative_tokens 2",
    """org/m --max-model-len -1 -sc '{"method": "ngram", "num_speculative_tokens": 4}' --enforce-eager -pp=2""",
    "org/m --max-model 4096 --num-gpu-blocks 128 --async-scheduling --block-size 32 -dcp 1 -dp 2",
    "org/m --served-model-name a b --max-num-seqs 7 --kv-cache-dtype fp8 --mamba-ssm-cache-dtype float32",
    "org/m --device-memory-utilization 0.5 --disable-hybrid-kv-cache-manager --api-key k --hf-token --seed 3",
]


@pytest.fixture(scope="module")
def engine_answer() -> Any:
    """[[spellings, kind, nargs] of every option, values of every line], by vLLM's own parser."""
    arguments = [shlex.split(line) for line in LINES]
    done = subprocess.run(
        [str(VENV / "bin" / "python"), "-c", _PARSER],
        input=json.dumps(arguments),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.rpartition("RESULT")[2])


def test_every_flag_of_the_engine_is_in_the_table_with_its_arity(engine_answer: Any) -> None:
    arities = {"_StoreTrueAction": "switch", "BooleanOptionalAction": "toggle", "+": "many", "?": "optional"}
    differing = []
    for spellings, kind, nargs in engine_answer[0]:
        for spelling in spellings:
            if spelling in ("-h", "--help") or (kind == "BooleanOptionalAction" and spelling.startswith("--no-")):
                continue
            option = TABLE.get(spelling)
            arity = arities.get(kind) or arities.get(nargs, "one")
            if option is None or option.arity != arity:
                differing.append((spelling, arity, option))
    assert not differing


def test_flags_that_are_told_as_gone_are_not_the_engine_s_and_the_others_are(engine_answer: Any) -> None:
    taken = {spelling for spellings, _, _ in engine_answer[0] for spelling in spellings} | {"-O", "--model-tag"}
    assert {flag for flag in TABLE if refused_by(flag, "0.32") is None} == {flag for flag in TABLE if flag in taken}


def test_a_command_line_means_the_same_to_the_engine(engine_answer: Any) -> None:
    for line, theirs in zip(LINES, engine_answer[1], strict=True):
        (ours,) = read_commands(f"vllm serve {line}")
        assert ours.unknown == (), line
        assert ours.model == theirs["model_tag"], line
        for field in ours.given:
            assert getattr(ours.flags, field) == theirs[field], (line, field)
        assert ours.kv_cache_memory_bytes == theirs["kv_cache_memory_bytes"], line
        assert ours.speculative_config == theirs["speculative_config"], line
        assert ours.quantization == (theirs["quantization"] or ""), line
