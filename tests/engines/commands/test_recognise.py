"""Engines are found behind any wrapper, and nowhere else."""

from collections.abc import Callable, Sequence

import pytest

from kvbudget.engines.commands.command import Invocation, Start
from kvbudget.engines.commands.recognise import starts_of

Starts = Callable[[str], Sequence[Start]]


@pytest.mark.parametrize(
    ("text", "engine", "version"),
    [
        ("vllm serve m --x", "vllm", None),
        ("/opt/venv/bin/vllm serve m --x", "vllm", None),
        ("python -m vllm.entrypoints.openai.api_server m --x", "vllm", None),
        ("python3 -u -m vllm.entrypoints.cli.main serve m --x", "vllm", None),
        ("python /app/vllm/entrypoints/openai/api_server.py m --x", "vllm", None),
        ("A=1 nohup numactl -N 0 vllm serve m --x > log 2>&1 &", "vllm", None),
        ("exec sudo -E env A=1 vllm serve m --x", "vllm", None),
        ("uvx vllm@0.32.0 serve m --x", "vllm", "0.32.0"),
        ("uvx --from vllm==0.31.1 vllm serve m --x", "vllm", "0.31.1"),
        ("uv run --with 'vllm[flashinfer]==0.30.0' --python 3.12 -- vllm serve m --x", "vllm", "0.30.0"),
        ("conda run -n llm vllm serve m --x", "vllm", None),
        ("torchrun --nproc 2 x; vllm serve m --x", "vllm", None),
        ("tmux new-session -d 'vllm serve m --x'", "vllm", None),
        ('ssh box "cd /srv && vllm serve m --x"', "vllm", None),
        ('bash -lc "exec vllm serve m --x"', "vllm", None),
        ('eval "vllm serve m --x"', "vllm", None),
        ("C='vllm serve m --x'; $C", "vllm", None),
        ("$ vllm serve m --x", "vllm", None),
        ("docker run --gpus all vllm/vllm-openai:v0.32.0 m --x", "vllm", "0.32.0"),
        ("sudo docker run vllm/vllm-openai:v0.32.0-cu129 vllm serve m --x", "vllm", "0.32.0"),
        ("docker run --entrypoint bash vllm/vllm-openai:v0.32.0 -c 'vllm serve m --x'", "vllm", "0.32.0"),
        ("docker run --entrypoint vllm vllm/vllm-openai:v0.32.0 serve m --x", "vllm", "0.32.0"),
        ("python -m sglang.launch_server m --x", "sglang", None),
        ("sglang serve m --x", "sglang", None),
        ("docker run lmsysorg/sglang:v0.5.23 python3 -m sglang.launch_server m --x", "sglang", "0.5.23"),
        ("./build/bin/llama-server m --x", "llamacpp", None),
        ("llama-cli.exe m --x", "llamacpp", None),
        ("docker run ghcr.io/ggml-org/llama.cpp:server-b7406 m --x", "llamacpp", "b7406"),
        ("docker run ghcr.io/ggml-org/llama.cpp:full --server m --x", "llamacpp", None),
        ("text-generation-launcher m --x", "tgi", None),
        ("docker run ghcr.io/huggingface/text-generation-inference:3.3.6 m --x", "tgi", "3.3.6"),
        ("trtllm-serve m --x", "trtllm", None),
        ("mpirun -n 2 trtllm-llmapi-launch trtllm-serve serve m --x", "trtllm", None),
    ],
)
def test_an_engine_is_found_with_its_own_arguments(starts: Starts, text: str, engine: str, version: str | None) -> None:
    (start,) = starts(text)
    assert (start.engine, start.version, start.arguments) == (engine, version, ("m", "--x"))


@pytest.mark.parametrize(
    "text",
    [
        "pip install vllm==0.32.0",
        "echo vllm serve m",
        "pkill -f 'vllm serve'",
        "vllm bench serve --model m",
        "vllm chat",
        "python -m vllm.entrypoints.cli.main bench serve",
        "which vllm serve",
        "docker pull vllm/vllm-openai:v0.32.0",
        "docker run postgres:16",
        "docker run vllm/vllm-openai:v0.32.0 nvidia-smi",
        "git clone https://github.com/vllm-project/vllm serve",
        "python train.py --model vllm",
        "cat 'vllm serve m'",
        "",
    ],
)
def test_what_only_names_an_engine_starts_none(starts: Starts, text: str) -> None:
    assert not starts(text)


def test_variables_before_the_program_reach_it(starts: Starts) -> None:
    (start,) = starts("A=1 env B=2 vllm serve m")
    assert start.invocation.environment == {"A": "1", "B": "2"}


def test_several_engines_in_one_text_are_all_found(starts: Starts) -> None:
    found = starts("bash -c 'vllm serve a & vllm serve b'; sglang serve c")
    assert [start.arguments for start in found] == [("a",), ("b",), ("c",)]


def test_texts_within_texts_end_somewhere() -> None:
    text = "vllm serve m"
    for _ in range(8):
        text = "sh -c '" + text.replace("'", "'\\''") + "'"
    assert starts_of(Invocation(("sh", "-c", text))) == ()


def test_a_broken_text_in_an_argument_is_only_an_argument(starts: Starts) -> None:
    (start,) = starts("""vllm serve m --chat-template "it's vllm" """)
    assert start.arguments[-1] == "it's vllm"
