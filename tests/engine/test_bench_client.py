"""vLLM's own benchmark client drives the gate, and both count the same requests and the same tokens."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]
Engine = Any
Gate = Any

REQUESTS, INPUT_TOKENS, OUTPUT_TOKENS = 24, 64, 16


def test_both_sides_agree_on_what_was_served(
    gate: Gate, engine_venv: Path, model: Path, tmp_path: Path, figures: list[str], eventually: Callable[..., float]
) -> None:
    result = tmp_path / "result.json"
    command = [
        str(engine_venv / "bin" / "vllm"), "bench", "serve", "--backend=openai", f"--base-url={gate.url}",
        "--endpoint=/v1/completions", "--model=tiny", f"--tokenizer={model}", "--dataset-name=random",
        f"--random-input-len={INPUT_TOKENS}", f"--random-output-len={OUTPUT_TOKENS}", f"--num-prompts={REQUESTS}",
        "--request-rate=20", "--ignore-eos", "--disable-tqdm", "--seed=1", "--save-result",
        f"--result-dir={tmp_path}", f"--result-filename={result.name}",
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-3000:]
    told = json.loads(result.read_text())
    assert told["completed"] == REQUESTS
    eventually(lambda: gate.metric("requests_total", outcome="finished") == REQUESTS, "the gate counts them too")
    assert gate.metric("prompt_tokens_sum") == told["total_input_tokens"]
    assert gate.metric("output_tokens_sum") == told["total_output_tokens"]
    assert gate.metric("token_drift_total") == 0
    assert gate.reserved_blocks() == 0
    figures.append(
        f"vllm bench serve through the gate: {told['completed']} answers, {told['total_input_tokens']} prompt and "
        f"{told['total_output_tokens']} output tokens on both sides"
    )
