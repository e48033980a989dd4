"""Whatever people start engines with is read, from a line to a manifest; nothing in it is run."""

import random
import string
from pathlib import Path
from textwrap import dedent

import pytest

from kvbudget.edge.launch.read import MAX_FILE_BYTES, one_command, read_commands
from kvbudget.engines.commands.command import Command
from kvbudget.engines.flags import EngineFlags
from kvbudget.errors import BadConfigError, BadValueError, KvbudgetError

SCRIPT = r"""
#!/usr/bin/env bash
# Starts the chat model and its embedder on one machine.
set -euo pipefail
source /etc/llm/secrets.env

MODEL="${MODEL:-Qwen/Qwen3-32B}"
CONTEXT=32K
COMMON=(
  --host 0.0.0.0          # behind nginx
  --gpu-memory-utilization 0.92
)
if [[ -n "${DEBUG:-}" ]]; then
  COMMON+=(--enable-log-requests)
fi

pip install -q "vllm==0.32.0"
export CUDA_VISIBLE_DEVICES=0,1,2,3
VLLM_ATTENTION_BACKEND=FLASH_ATTN nohup vllm serve "$MODEL" \
  --tensor-parallel-size 4 --max-model-len "$CONTEXT" \
  --speculative-config '{"method": "eagle3", "model": "/models/eagle", "num_speculative_tokens": 3}' \
  "${COMMON[@]}" --max-num-seqs "$SEQS" > /var/log/llm.log 2>&1 &

CUDA_VISIBLE_DEVICES=4 vllm serve BAAI/bge-m3 --runner pooling --port 8001 "${COMMON[@]}" &
wait
"""

COMPOSE = """
x-gpu: &gpu
  deploy:
    resources:
      reservations:
        devices: [{driver: nvidia, device_ids: ["0", "1"], capabilities: [gpu]}]
services:
  nginx: {image: "nginx:1", command: "nginx -g 'daemon off;'"}
  llm:
    <<: *gpu
    image: vllm/vllm-openai:${VLLM:-v0.32.0}
    container_name: chat
    ipc: host
    environment:
      - HF_TOKEN=${HF_TOKEN}
    command: >
      --model ${MODEL:-meta-llama/Llama-3.3-70B-Instruct}
      --tensor-parallel-size 2 --max-model-len 16384
      --kv-cache-dtype fp8
  small:
    image: ghcr.io/ggml-org/llama.cpp:server-cuda-b7406
    environment: {LLAMA_ARG_MODEL: /models/small.gguf, LLAMA_ARG_CTX_SIZE: 16384}
    command: [-fa, on, -np, "4"]
    gpus: all
"""

MANIFESTS = """
# Source: chart/templates/config.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: llm}
data:
  MODEL: deepseek-ai/DeepSeek-V3
  vllm.yaml: |
    max-model-len: 65536
    kv-cache-dtype: fp8
    max-num-seqs: 64
---
apiVersion: v1
kind: Service
metadata: {name: llm}
spec: {ports: [{port: 8000}]}
---
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: llm}
spec:
  replicas: 1
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
          - name: leader
            image: docker.io/vllm/vllm-openai:v0.32.0
            envFrom: [{configMapRef: {name: llm}}]
            command:
              - sh
              - -c
              - "bash /multi-node.sh leader --ray_cluster_size=$(LWS_GROUP_SIZE);
                 vllm serve ${MODEL} --port 8080 --tensor-parallel-size 8
                 --pipeline_parallel_size $(LWS_GROUP_SIZE) --config /etc/llm/vllm.yaml --max-num-seqs 128"
            resources: {limits: {nvidia.com/gpu: "8"}}
    workerTemplate:
      spec:
        containers:
          - {name: worker, image: "docker.io/vllm/vllm-openai:v0.32.0", command: [sh, -c, "vllm serve x --headless"]}
"""


def test_a_line_is_read() -> None:
    (command,) = read_commands("vllm serve ./Qwen3-8B --max-model-len 8192 -tp 2")
    assert (command.model, command.where) == ("./Qwen3-8B", "")
    assert command.flags == EngineFlags(max_model_len=8192, tensor_parallel_size=2)


def test_a_script_is_read_with_its_variables(tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    path.write_text(SCRIPT)
    chat, embedder = read_commands(str(path))
    assert (chat.engine, chat.model, chat.gpus, chat.where) == ("vllm@0.32", "Qwen/Qwen3-32B", 4, "line 19")
    assert chat.flags == EngineFlags(max_model_len=32_768, tensor_parallel_size=4, gpu_memory_utilization=0.92)
    assert chat.speculative_config == {"method": "eagle3", "model": "/models/eagle", "num_speculative_tokens": 3}
    assert chat.hidden == (
        "/etc/llm/secrets.env, which the text sources, is not read",
        "--max-num-seqs: $SEQS is not defined in the text, so the flag is left out",
    )
    assert chat.ignored == ("--host", "--enable-log-requests")
    assert (embedder.model, embedder.gpus) == ("BAAI/bge-m3", 1)
    assert read_commands(SCRIPT) == (chat, embedder)


def test_a_compose_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "compose.yaml"
    path.write_text(COMPOSE)
    commands = read_commands(str(path))
    assert [command.where for command in commands] == ["service llm", "service small"]
    llm, small = commands
    assert (llm.engine, llm.model, llm.gpus) == ("vllm@0.32", "meta-llama/Llama-3.3-70B-Instruct", 2)
    assert llm.flags == EngineFlags(max_model_len=16_384, kv_cache_dtype="fp8", tensor_parallel_size=2)
    assert llm.hidden == ()  # a token that is not said is no matter
    assert (small.engine, small.model, small.gpus) == ("llamacpp@b7406", "/models/small.gguf", None)
    assert small.flags == EngineFlags(max_model_len=16_384, max_num_seqs=4)
    assert one_command(commands, "llm") is llm
    assert one_command(commands, "chat") is llm
    assert one_command(commands, "service small") is small


def test_manifests_are_read_with_the_settings_they_bring() -> None:
    (command,) = read_commands(MANIFESTS)
    assert (command.engine, command.model, command.gpus) == ("vllm@0.32", "deepseek-ai/DeepSeek-V3", 16)
    assert command.flags == EngineFlags(
        max_model_len=65_536,
        max_num_seqs=128,
        kv_cache_dtype="fp8",
        tensor_parallel_size=8,
        pipeline_parallel_size=2,
    )
    assert one_command([command], "LeaderWorkerSet/llm") is command


def test_json_manifests_are_manifests(tmp_path: Path) -> None:
    path = tmp_path / "pod.json"
    path.write_text(
        '{"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"image": "vllm/vllm-openai:v0.32.0", '
        '"args": ["--model", "m"], "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}'
    )
    (command,) = read_commands(str(path))
    assert (command.engine, command.model, command.gpus) == ("vllm@0.32", "m", 1)


@pytest.mark.parametrize(
    ("text", "engine", "flags"),
    [
        ("model: m\ntensor-parallel-size: 4\nmax-model-len: 8K\nenable-prefix-caching: false\n", "vllm",
         EngineFlags(tensor_parallel_size=4, max_model_len=8192, enable_prefix_caching=False)),
        ("model-path: m\ntp-size: 2\nmem-fraction-static: 0.8\ndisable-radix-cache: true\n", "sglang",
         EngineFlags(tensor_parallel_size=2, gpu_memory_utilization=0.8, enable_prefix_caching=False)),
        ("max_batch_size: 8\nkv_cache_config:\n  free_gpu_memory_fraction: 0.8\n  dtype: fp8\n", "trtllm",
         EngineFlags(max_num_seqs=8, gpu_memory_utilization=0.8, kv_cache_dtype="fp8")),
    ],
)  # fmt: skip
def test_an_engines_own_settings_file_is_read(text: str, engine: str, flags: EngineFlags) -> None:
    (command,) = read_commands(text)
    assert (command.engine, command.flags, command.unknown) == (engine, flags, ())


def test_a_settings_file_beside_a_script_is_read_and_flags_win(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "v.yaml").write_text("max-model-len: 4096\nmax-num-seqs: 8\nnew-flag: 1\n")
    path = tmp_path / "start.sh"
    path.write_text("vllm serve m --max-model-len 8192 --config conf/v.yaml\n")
    (command,) = read_commands(str(path))
    assert command.flags == EngineFlags(max_model_len=8192, max_num_seqs=8)
    assert command.unknown == ("--new-flag=1",)


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (
            "vllm serve m --config nowhere.yaml",
            "--config nowhere.yaml is not a YAML file that is here, and is not read",
        ),
        ("vllm serve m --config /etc/passwd", "--config /etc/passwd is not a YAML file that is here, and is not read"),
        ("vllm serve m --config $C", "--config $C is not defined in the text"),
        ("docker run vllm/vllm-openai m --config /c.yaml", "--config /c.yaml is inside the container, and is not read"),
    ],
)
def test_a_settings_file_that_cannot_be_seen_is_said(text: str, note: str) -> None:
    (command,) = read_commands(text)
    assert note in command.hidden


def test_a_settings_file_without_settings_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "v.yaml").write_text("- a\n- b\n")
    with pytest.raises(BadConfigError, match="holds no settings"):
        read_commands(f"vllm serve m --config {tmp_path / 'v.yaml'}")


def test_a_systemd_unit_is_read() -> None:
    (command,) = read_commands(
        dedent("""
            [Unit]
            Description=LLM's server
            [Service]
            Environment=CUDA_VISIBLE_DEVICES=0,1 "M=org/m"
            EnvironmentFile=-/etc/llm.env
            ExecStartPre=/usr/bin/vllm serve wrong
            ExecStart=-/opt/venv/bin/vllm serve ${M} \\
                --tensor-parallel-size 2
            Restart=always
        """)
    )
    assert (command.model, command.flags.tensor_parallel_size, command.gpus) == ("org/m", 2, 2)


def test_nothing_found_says_what_was_looked_for() -> None:
    for text, seen in (("ls -l; pwd", "2 command"), ("services: {a: {image: x}}\n", "1 container"), ("", "0 command")):
        with pytest.raises(BadValueError, match=f"no engine command found in {seen}.*vllm serve.*trtllm-serve"):
            read_commands(text)


def test_several_commands_have_to_be_chosen_from() -> None:
    commands = read_commands(COMPOSE)
    with pytest.raises(BadValueError, match=r"2 engine commands: service llm: vllm@0\.32 .*; service small: llamacpp"):
        one_command(commands)
    with pytest.raises(BadValueError, match="nothing is named 'other'; there is service llm"):
        one_command(commands, "other")


def test_commands_that_say_the_same_need_no_choice() -> None:
    commands = read_commands("vllm serve m -tp 2 &\nvllm serve m -tp 2 &\n")
    assert len(commands) == 2
    assert one_command(commands) is commands[0]


@pytest.mark.parametrize("name", ["none.yaml", "/nowhere/start.sh", "x.service"])
def test_a_file_that_is_not_there_is_said(name: str) -> None:
    with pytest.raises(BadValueError, match="does not exist"):
        read_commands(name)


def test_a_folder_is_no_command(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match="is a folder"):
        read_commands(str(tmp_path))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x7fELF\x00\x01", "is no text"),
        (b"\xff\xfevllm serve m", "no UTF-8"),
        (b"vllm serve m\n" * (10 * 1024 * 1024 // 13), "larger than"),
    ],
)
def test_files_that_are_no_scripts_are_refused(tmp_path: Path, data: bytes, what: str) -> None:
    path = tmp_path / "start"
    path.write_bytes(data)
    with pytest.raises(BadConfigError, match=what):
        read_commands(str(path))


def test_a_huge_file_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "start.sh"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES * 1000)
    with pytest.raises(BadConfigError, match="larger than"):
        read_commands(str(path))


def test_a_file_that_begins_with_a_mark_is_text(tmp_path: Path) -> None:
    path = tmp_path / "start"
    path.write_bytes(b"\xef\xbb\xbfvllm serve m\r\n")
    (command,) = read_commands(str(path))
    assert command.model == "m"


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve 'm",
        "vllm serve m --max-model-len abc",
        "vllm serve m\0",
        "services: {a: [}",
        "services: {vllm: text}",
        "services: &a {vllm: *a}\n",
        "((((" * 1000,
        "docker run " * 5000,
        "sh -c " * 5000,
        "vllm serve m " + "--a " * 5000,
        "x " + "${a:-" * 3000 + "}" * 3000,
        "`" * 3001,
        "vllm serve m\n" * 300,
    ],
)
def test_hostile_input_is_a_clear_error(text: str) -> None:
    with pytest.raises(KvbudgetError) as caught:
        read_commands(text)
    assert caught.value.fix
    assert len(str(caught.value)) < 600


def test_mutated_files_never_end_in_a_traceback() -> None:
    seed = 20_26
    generator = random.Random(seed)
    pieces = ['"', "'", "${", "$(", ")", "}", "\\", "\n", "&", "*", "<<", ": ", "- ", "[", "{", "\t", "é", "`", "\x0c"]
    for _ in range(300):
        text = list(generator.choice((SCRIPT, COMPOSE, MANIFESTS)))
        for _ in range(generator.randint(1, 12)):
            at = generator.randrange(len(text))
            choice = generator.random()
            if choice < 0.4:
                text[at] = generator.choice(string.printable)
            elif choice < 0.7:
                del text[at : at + generator.randint(1, 20)]
            else:
                text.insert(at, generator.choice(pieces))
        try:
            commands = read_commands("".join(text) + "\n")
        except KvbudgetError:
            continue
        assert all(isinstance(command, Command) for command in commands)


def test_a_text_of_very_many_words_is_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bomb.sh"
    for text in ("bash -c " * 30_000, "a;" * 60_000, "$(" * 60_000):
        path.write_text(text)
        with pytest.raises(BadValueError, match="more than 50000 words"):
            read_commands(str(path))
