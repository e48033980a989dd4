"""`kvbudget plan` as people and programs call it: exit codes, one JSON document, nothing but the standard library."""

import argparse
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvbudget.cli.main import main
from kvbudget.cli.plan import add_arguments

ROOT = Path(__file__).parents[2]
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
    "max_position_embeddings": 131072,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint folder with config.json alone."""
    path = tmp_path / "Llama-3.1-8B"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(LLAMA))
    return path


def document(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, dict[str, Any]]:
    code = main(["plan", *map(str, words), "--json"])
    out = capsys.readouterr().out
    assert out.count("\n") == 1  # one document on one line
    parsed: dict[str, Any] = json.loads(out)
    return code, parsed


def test_a_model_that_fits_exits_0_with_one_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, plan = document(
        capsys, folder, "--kv-cache-memory-bytes", "24GiB", "--max-model-len", "8k", "--engine", "vllm@0.32"
    )
    assert code == 0
    assert plan["model"]["name"] == "Llama-3.1-8B"
    assert plan["pool"] == {
        "bytes": 24 * 2**30, "num_blocks": 12288, "usable_blocks": 12287, "tokens": 196608
    }  # fmt: skip
    assert plan["concurrency"]["at_max_model_len"] == 24.0


def test_a_model_that_does_not_fit_exits_1_with_the_whole_document(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, plan = document(capsys, folder, "--gpu", "rtx-3090")
    assert code == 1
    assert plan["fits"] is False
    assert plan["findings"][0]["code"] == "max_model_len_too_large"
    assert plan["concurrency"]["largest_max_model_len"] > 16000


def test_every_flag_reaches_the_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, plan = document(
        capsys, folder, "--gpu", "h100", "--gpus", 4, "--gpu-memory-utilization", 0.9, "--weights", "16GiB",
        "--activation", "2GiB", "--overhead", "1GiB", "--max-model-len", "8192", "--max-num-seqs", 10,
        "--max-num-batched-tokens", 4096, "--block-size", 32, "--kv-cache-dtype", "fp8", "-tp", 2, "-pp", 2,
        "--no-async-scheduling", "--no-enable-prefix-caching", "--disable-hybrid-kv-cache-manager", "-dcp", 1,
        "--prompt-lengths", "p50=800,p95=4000,p99=8000", "--output-lengths", "p50=100,p95=100,p99=100",
        "--target-concurrency", 10, "--explain",
    )  # fmt: skip
    assert code == 0
    assert plan["engine"] == {
        "name": "vllm", "version": "0.32", "max_in_flight_tokens": 8192, "block_size": 32,
        "max_num_batched_tokens": 4096, "max_num_seqs": 10, "kv_cache_dtype": "fp8", "tensor_parallel_size": 2,
        "pipeline_parallel_size": 2, "data_parallel_size": 1, "gpu_memory_utilization": 0.9,
    }  # fmt: skip
    assert plan["kv"]["groups"][0]["layers"] == 16
    assert plan["concurrency"]["limited_by"] == "max_num_seqs"
    assert plan["concurrency"]["lengths"] == {"p50": 900, "p95": 4100, "p99": 8100}
    assert any("null block" in line for line in plan["explain"])


def test_weights_beside_the_config_are_measured(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = {"metadata": {"total_size": 16_000_000_000}, "weight_map": {"a": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    _, plan = document(capsys, folder, "--gpu", "h100", "--max-model-len", "8k")
    rotary_tables = 32 * 2**20  # made beside the weights: 131,072 positions x 128 x 2 bytes
    assert plan["memory"]["weights"]["bytes"] == 16_000_000_000 + rotary_tables
    assert plan["memory"]["weights"]["source"] == "measured"


def test_an_automatic_length_is_found(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, plan = document(capsys, folder, "--kv-cache-memory-bytes", "8GiB", "--max-model-len", "auto")
    assert (code, plan["concurrency"]["max_model_len"]) == (0, 65520)


def test_a_trace_alone_gives_percentiles_and_tail_of_its_own_requests(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "usage.jsonl"
    lengths = [100 * number for number in range(1, 101)]
    trace.write_text("".join(json.dumps({"prompt_tokens": n - 1, "completion_tokens": 1}) + "\n" for n in lengths))
    words = (folder, "--kv-cache-memory-bytes", "24GiB", "--max-model-len", "8k", "--trace", trace)
    code, plan = document(capsys, *words)
    assert code == 0
    assert plan["concurrency"]["lengths"] == {"p50": 4100, "p95": 7700, "p99": 8100}  # of the 81 that are served
    assert plan["concurrency"]["p50"] == plan["workload"]["p50"]["ceiling"] == 12287 // 257
    assert plan["workload"]["left_out"] == {"refused": 19, "cut": 0}
    served = [min(length, 8192) for length in lengths if length - 1 < 8192]
    empty = [-length % 16 for length in served]
    assert plan["tail_waste"]["slots"] == round(sum(empty) / len(served))
    assert plan["tail_waste"]["fraction"] == pytest.approx(sum(empty) / sum(map(sum, zip(empty, served, strict=True))))
    assert plan["tail_waste"]["fraction"] == pytest.approx(plan["workload"]["tail"]["fraction"])
    assert [finding["code"] for finding in plan["findings"]] == ["length_beyond_max_model_len"]
    assert "19 of 100 requests are longer" in plan["findings"][0]["message"]


def test_a_margin_is_in_every_ceiling_and_shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [str(folder), "--kv-cache-memory-bytes", "24GiB", "--max-model-len", "8k", "--margin", "50%"]
    _, plan = document(capsys, *words)
    assert plan["concurrency"]["margin_blocks"] == 6144  # of 12,287, rounded up
    assert (plan["concurrency"]["ceiling"], plan["concurrency"]["p99"]) == (11, 11)
    assert plan["concurrency"]["at_max_model_len"] == 24.0  # the engine knows no margin
    main(["plan", *words, "--explain"])
    text = capsys.readouterr().out
    assert "6,144 of them kept back" in text
    assert "(12,287 - 6,144 of --margin) // 512" in " ".join(text.split())


def test_an_estimate_has_an_interval_and_what_is_given_has_none(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, plan = document(capsys, folder, "--gpu", "h100", "--weights", "16GiB", "--max-model-len", "8k")
    memory = plan["memory"]
    assert memory["activation"]["low"] < memory["activation"]["bytes"] < memory["activation"]["high"]
    assert memory["kv"]["low"] < memory["kv"]["bytes"] < memory["kv"]["high"]
    assert all(type(memory["kv"][name]) is int for name in ("low", "high"))
    assert memory["weights"].keys() == {"bytes", "source", "note"}


def test_the_answers_beside_the_plan_are_keys_of_the_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, plan = document(
        capsys, folder, "--gpu", "h100", "--max-model-len", "8k", "--prompt-lengths", "p50=800,p95=2k,p99=4k",
        "--output-lengths", "p50=100,p95=400,p99=800", "--advise", "--long-context", "64k", "--offload",
        "--price-per-hour", 3.5, "--arrival-rate", 2, "--solve", "concurrency",
    )  # fmt: skip
    assert code == 0
    assert {"workload", "advice", "long_context", "offload", "cost", "solved"} <= plan.keys()
    assert plan["solved"]["concurrency"]["value"] == plan["concurrency"]["p95"]  # lengths are known: of that length
    assert plan["workload"]["stability"]["arrivals_per_s"] == 2.0


def test_cost_is_of_the_requests_that_are_served(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "usage.jsonl"
    lengths = ((40000, 358), (1000, 200), (520, 1000))
    trace.write_text("".join(json.dumps({"prompt_tokens": p, "completion_tokens": o}) + "\n" for p, o in lengths))
    words = (folder, "--gpu", "l40s", "--max-model-len", "16k", "--price-per-hour", 1.2)
    _, plan = document(capsys, *words, "--trace", trace)
    cost = plan["cost"]
    assert (cost["prompt_tokens"], cost["output_tokens"], cost["lengths"]) == (760, 600, "given")
    held = cost["concurrency"] * (cost["prompt_tokens"] + cost["output_tokens"])
    assert held <= plan["pool"]["tokens"]
    _, plan = document(capsys, *words)
    assert plan["cost"]["lengths"] == "assumed"


def test_tiers_and_needs_of_heads_are_given_by_hand(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = (capsys, folder, "--kv-cache-memory-bytes", "24GiB", "--max-model-len", "8k")
    _, plan = document(*words, "--offload", "cpu=1TiB,s3=10TB@1GB", "--head-needs", "8,1,1,1,1,1,1,1")
    assert [tier["medium"] for tier in plan["offload"]["tiers"]] == ["gpu", "cpu", "s3"]
    assert sum(plan["offload"]["heads"]["budgets"]) == 8 * 2048
    _, other = document(*words, "--head-needs", "1,1,1,1,1,1,1,1")
    assert other["offload"]["heads"]["budgets"] == [2048] * 8


def test_the_files_that_are_asked_for_are_written(folder: Path, tmp_path: Path) -> None:
    words = ["plan", str(folder), "--gpu", "h100", "--max-model-len", "8k", "--json"]
    paths = {flag: tmp_path / f"out.{flag}" for flag in ("markdown", "html", "write")}
    assert main([*words, *(word for flag, path in paths.items() for word in (f"--{flag}", str(path)))]) == 0
    assert paths["markdown"].read_text().startswith("# ")
    assert "</html>" in paths["html"].read_text()
    assert "[gate]" in paths["write"].read_text()


def test_a_file_that_cannot_be_made_keeps_neither_the_plan_nor_the_others_back(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)  # as where kvbudget[report] is not installed
    budget, lost = tmp_path / "kvbudget.toml", tmp_path / "no" / "plan.md"
    words = ["plan", str(folder), "--gpu", "h100", "--max-model-len", "8k", "--png", str(tmp_path / "plan.png")]
    assert main([*words, "--html", str(tmp_path / "plan.html"), "--write", str(budget)]) == 2
    said = capsys.readouterr()
    assert said.out.startswith("FITS")
    assert said.err.count("charts need altair, which is not installed; pip install") == 1
    assert "[gate]" in budget.read_text()
    assert main([*words, "--json", "--markdown", str(lost)]) == 2
    said = capsys.readouterr()
    assert json.loads(said.out)["fits"] is True
    assert "cannot be written" in said.err
    assert "charts need altair" in said.err


def test_no_memory_is_asked_for_where_flags_alone_size_the_cache(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, plan = document(capsys, folder, "--engine", "llamacpp", "--max-model-len", "8k")
    assert code == 0
    assert plan["pool"]["tokens"] == 8192
    assert plan["memory"]["kv"]["bytes"] == plan["pool"]["bytes"] == 2**30
    assert plan["memory"]["kv"]["source"] == "computed"
    assert plan["memory"]["total"]["bytes"] == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--gpu", "voodoo"],
        ["--gpu-memory", "many"],
        ["--kv-cache-memory-bytes", "-1"],
        ["--kv-cache-memory-bytes", "1GiB", "--max-model-len", "long"],
        ["--kv-cache-memory-bytes", "1GiB", "--engine", "ollama"],
        ["--kv-cache-memory-bytes", "1GiB", "--engine", "vllm@99.9"],
        ["--kv-cache-memory-bytes", "1GiB", "--decode-context-parallel-size", "0"],
        ["--kv-cache-memory-bytes", "1GiB", "--max-num-seqs", "-3"],
        ["--kv-cache-memory-bytes", "1GiB", "--max-num-seqs", "9" * 40],
        ["--kv-cache-memory-bytes", "1GiB", "--micro-batch", "0"],
        ["--kv-cache-memory-bytes", "1GiB", "--pp-layer-partition", "16,-16"],
        ["--kv-cache-memory-bytes", "1GiB", "--margin", "nan"],
        ["--kv-cache-memory-bytes", "1GiB", "--margin", "150%"],
        ["--kv-cache-memory-bytes", "1GiB", "--arrival-rate", "2"],
        ["--kv-cache-memory-bytes", "1GiB", "--price-per-hour", "nan"],
        ["--kv-cache-memory-bytes", "1GiB", "--price-per-hour", "-1"],
        ["--kv-cache-memory-bytes", "1GiB", "--trace", "/nowhere/trace.csv"],
        ["--kv-cache-memory-bytes", "1GiB", "--trace-format", "azure"],
        ["--kv-cache-memory-bytes", "1GiB", "--prompt-lengths", "p50=1", "--output-lengths", "p50=1", "--trace", "x"],
        ["--kv-cache-memory-bytes", "1GiB", "--long-context", "9" * 25],
        ["--kv-cache-memory-bytes", "1GiB", "--long-context", "0"],
        ["--kv-cache-memory-bytes", "1GiB", "--speculative-config", "[]"],
        ["--kv-cache-memory-bytes", "1GiB", "--speculative-config", '{"num_speculative_tokens": true}'],
        ["--kv-cache-memory-bytes", "1GiB", "--command-name", "x"],
        ["--kv-cache-memory-bytes", "1GiB", "--command", "echo hello"],
        ["--gpu", "h100", "--gpu-memory-utilization", "nan"],
        ["--gpu", "h100", "--gpu-memory-utilization", "inf"],
        ["--gpu", "h100", "--gpus", "0"],
        ["--gpu", "h100:99999999"],
        ["--kv-cache-memory-bytes", "1GiB", "--kv-cache-dtype", "fp3"],
        ["--kv-cache-memory-bytes", "1GiB", "--block-size", "0"],
        ["--kv-cache-memory-bytes", "1GiB", "--prompt-lengths", "p50=1"],
        [],
    ],
)
def test_what_cannot_be_planned_exits_2_with_one_line_on_stderr(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(["plan", str(folder), *words, "--json"]) == 2
    captured = capsys.readouterr()
    error = json.loads(captured.out)["error"]
    assert captured.err.startswith(f"kvbudget plan: {error['code']}: ")
    assert captured.err.count("\n") == 1


def test_an_unknown_flag_exits_2_with_the_usage_of_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan", str(folder), "--nonsense"])
    assert caught.value.code == 2
    usage, error = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: kvbudget plan MODEL")
    assert error == "kvbudget plan: error: unrecognized arguments: --nonsense"


MEMORY_FLAGS = ("--gpu-memory", "--kv-cache-memory-bytes", "--weights", "--activation", "--overhead")


def test_the_memory_flags_are_all_flags_that_take_a_size() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    sized = {action.option_strings[0] for action in parser._actions if action.metavar == "SIZE"}
    assert sized == set(MEMORY_FLAGS)


@pytest.mark.parametrize("flag", MEMORY_FLAGS)
@pytest.mark.parametrize(("given", "meant"), [("24", "24GiB"), ("1.5", "1.5GiB"), ("80KB", "80GiB"), ("16b", "16GiB")])
def test_a_size_that_lost_its_unit_is_refused_with_what_was_meant(
    folder: Path, capsys: pytest.CaptureFixture[str], flag: str, given: str, meant: str
) -> None:
    assert main(["plan", str(folder), "--gpu", "h100", flag, given]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"kvbudget plan: bad_value: {flag}: {given!r}")
    assert f"did you mean {meant}?" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("flag", MEMORY_FLAGS)
def test_no_memory_at_all_is_allowed_only_where_it_means_none(
    folder: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    code = main(["plan", str(folder), "--gpu", "h100", "--max-model-len", "8k", flag, "0"])
    assert code == (0 if flag in ("--activation", "--overhead") else 2)
    assert "0GiB?" not in capsys.readouterr().err


def test_a_quantisation_that_only_the_name_tells_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "nvidia--Llama-3.1-8B-NVFP4"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    code, plan = document(capsys, folder, "--gpu", "h100", "--max-model-len", "8k")
    assert code == 0
    (finding,) = plan["findings"]
    assert (finding["code"], finding["severity"]) == ("quantisation_only_in_name", "warning")
    assert "NVFP4" in finding["message"]
    assert "hf_quant_config.json" in finding["fix"]
    assert "--weights" in finding["fix"]
    code, plan = document(capsys, folder, "--gpu", "h100", "--max-model-len", "8k", "--weights", "6GiB")
    assert (code, plan["findings"]) == (0, [])


@pytest.mark.parametrize("as_json", [["--json"], []])
def test_a_full_disk_is_one_line_on_stderr_and_exit_2(folder: Path, as_json: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvbudget", "plan", str(folder), "--gpu", "h100", *as_json],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("kvbudget plan: bad_value: stdout: ")
    assert done.stderr.count("\n") == 1


def test_a_terminal_without_unicode_gets_a_plan_too(folder: Path) -> None:
    named = folder.rename(folder.parent / "Llama-Größe")
    done = subprocess.run(
        [sys.executable, "-m", "kvbudget", "plan", str(named), "--gpu", "h100", "--explain"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "###" in done.stdout


def test_the_line_of_the_log_is_unbroken_where_no_terminal_reads_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    words = ["plan", str(folder), "--kv-cache-memory-bytes", "24GiB", "--max-model-len", "8k"]
    assert main(words) == 0
    line = "KV cache size: 196,608 tokens, Maximum concurrency for 8,192 tokens per request: 24.00x"
    assert any(shown.endswith(line) for shown in capsys.readouterr().out.splitlines())


def test_the_examples_of_the_how_to_run_from_a_clone(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    lines = re.findall(r"^kvbudget (plan docs/examples/\S+ .*)$", (ROOT / "docs/how-to/plan.md").read_text(), re.M)
    assert len(lines) >= 3
    for line in lines:
        assert main(line.partition(" #")[0].split()) == 0, line


def test_the_help_has_examples_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["plan", "--help"])
    text = capsys.readouterr().out
    assert caught.value.code == 0
    assert "examples:" in text
    assert "exit: 0 fits" in text
    assert "--write FILE" in text


def test_the_text_is_readable_and_without_colour_where_that_is_asked(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["plan", str(folder), "--gpu", "h100", "--max-model-len", "8k", "--explain"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("FITS  Llama-3.1-8B on 1 x H100 80GB")
    assert "\x1b" not in text
    assert len(text.splitlines()) < 45
    assert all(line == line.rstrip() for line in text.splitlines())


def test_json_needs_nothing_outside_the_standard_library(folder: Path) -> None:
    script = (
        "import sys; from kvbudget.cli.main import main; code = main(sys.argv[1:]);"
        "mine = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - {'kvbudget'};"
        "print(sorted(name for name in mine if not name.startswith('_')), file=sys.stderr); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "plan", str(folder), "--gpu", "h100", "--max-model-len", "8k", "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    foreign = set(json.loads(done.stderr.strip().splitlines()[-1].replace("'", '"')))
    assert foreign <= {"a1_coverage", "coverage", "distutils-precedence", "sitecustomize"}, foreign


def test_mutated_configs_end_in_a_plan_or_one_clear_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choose = random.Random(7)
    junk: list[object] = [None, True, 0, -1, 3, 10**30, 0.5, "x", [], {}, [1], {"type": "linear", "factor": 1e300}]
    seen = set()
    for _ in range(300):
        config = dict(LLAMA)
        for _ in range(choose.randint(1, 3)):
            config[choose.choice([*LLAMA, "head_dim", "rope_scaling", "layer_types"])] = choose.choice(junk)
        (folder / "config.json").write_text(json.dumps(config))
        code = main(["plan", str(folder), "--gpu", "h100", "--json"])
        captured = capsys.readouterr()
        seen.add(code)
        assert code == 2 or json.loads(captured.out)["schema"] == "kvbudget.plan/1", config
        assert code != 2 or captured.err.count("\n") == 1, config
    assert seen >= {0, 2}


def test_every_flag_and_finding_is_in_the_how_to() -> None:
    text = (ROOT / "docs" / "how-to" / "plan.md").read_text()
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    flags = {word for action in shown for word in action.option_strings if word.startswith("--")}
    missing = {flag for flag in flags if f"`{flag}`" not in text and not flag.startswith("--no-")} - {"--help"}
    assert missing == set()
    package = ROOT / "src" / "kvbudget"
    speaking = [*(package / "engines").rglob("*.py"), *(package / "planner").glob("*.py"),
                *(package / "cli" / "planning").glob("*.py")]  # fmt: skip
    sources = "".join(path.read_text() for path in speaking)
    codes = set(re.findall(r'(?:Refusal|Finding|Shared)\(\s*"(\w+)"', sources))
    assert len(codes) > 25
    assert {code for code in codes if f"`{code}`" not in text} == set()


_BARE = """
import sys
for name in ("prometheus_client", "uvloop", "httptools", "orjson", "starlette", "uvicorn", "aiohttp", "jiter",
             "tokenizers", "fastokens", "jinja2", "altair", "vl_convert"):
    sys.modules[name] = None
from kvbudget.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt_tokens": 900, "completion_tokens": 100}\n' * 20,
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n",
        '# TYPE vllm:request_prompt_tokens histogram\nvllm:request_prompt_tokens_bucket{le="100.0"} 9\n'
        'vllm:request_prompt_tokens_bucket{le="+Inf"} 9\nvllm:request_generation_tokens_bucket{le="10.0"} 9\n'
        'vllm:request_generation_tokens_bucket{le="+Inf"} 9\n',
    ],
    ids=["usage", "azure", "histogram"],
)
def test_a_trace_is_planned_and_checked_without_the_libraries_of_any_extra(
    text: str, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "trace").write_text(text)

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _BARE, *map(str, words)], capture_output=True, text=True, timeout=60, check=False
        )

    given = (folder, "--gpu", "h100", "--max-model-len", "8k", "--trace", tmp_path / "trace")
    planned = run("plan", *given, "--write", tmp_path / "kvbudget.toml")
    assert (planned.returncode, planned.stderr) == (0, "")
    checked = run("check", tmp_path / "kvbudget.toml")
    assert (checked.returncode, checked.stderr) == (0, "")
    missing = run("plan", folder, "--gpu", "h100", "--trace", tmp_path / "nothing")
    assert missing.returncode == 2
    assert "No such file" in missing.stderr


def test_files_that_cannot_be_the_weights_are_said_to_be_doubtful(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    header = json.dumps({"x": {"dtype": "BF16", "shape": [1000], "data_offsets": [0, 2000]}}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(2000))
    _, plan = document(capsys, folder, "--gpu", "h100", "--max-model-len", "8k")
    assert plan["memory"]["weights"]["source"] == "measured"
    found = next(finding for finding in plan["findings"] if finding["code"] == "weights_doubtful")
    assert "far less than the 14.96 GiB that config.json describes" in found["message"]
    (folder / "model.safetensors").rename(folder / "model-00001-of-00004.safetensors")
    assert main(["plan", str(folder), "--gpu", "h100", "--json"]) == 2
    assert "model-00002-of-00004.safetensors is missing" in capsys.readouterr().err
    _, plan = document(capsys, folder, "--gpu", "h100", "--max-model-len", "8k", "--weights", "15GiB")
    assert [finding["code"] for finding in plan["findings"]] == []
