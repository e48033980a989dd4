"""Which files MODEL means, and what damaged ones say."""

import json
import os
from pathlib import Path

import pytest

from kvbudget.edge.hub.folder import MAX_JSON_BYTES, MAX_TEXT_CHARS, read_checkpoint, read_json
from kvbudget.errors import BadConfigError, BadValueError


def test_a_folder_and_its_config_json_mean_the_same(tmp_path: Path) -> None:
    folder = tmp_path / "Tiny-1B"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama"}')
    by_folder, by_file = read_checkpoint(str(folder)), read_checkpoint(str(folder / "config.json"))
    assert (by_folder.source, by_file.source) == ("folder", "file")
    assert by_folder == by_file._replace(source="folder")
    assert (by_folder.name, by_folder.config, by_folder.tensors) == ("Tiny-1B", {"model_type": "llama"}, None)
    assert read_checkpoint(f"{folder}/").name == "Tiny-1B"


def test_a_quantisation_beside_the_config_belongs_to_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "NVFP4"}}')
    assert read_checkpoint(str(tmp_path)).config == {
        "model_type": "llama",
        "quantization_config": {"quantization": {"quant_algo": "NVFP4"}},
    }


def test_the_fingerprint_follows_the_bytes_of_config_json(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama"}')
    first = read_checkpoint(str(path)).fingerprint
    assert len(first) == 64
    assert read_checkpoint(str(tmp_path)).fingerprint == first
    path.write_text('{"model_type":  "llama"}')
    assert read_checkpoint(str(path)).fingerprint != first


def test_a_hub_id_without_network_says_what_to_do() -> None:
    with pytest.raises(BadValueError, match="OFFLINE") as caught:
        read_checkpoint("meta-llama/Llama-3.1-8B", {"HF_HUB_OFFLINE": "1", "HF_HOME": "/nowhere"})
    assert caught.value.fix


def test_a_folder_of_gguf_files_names_one(tmp_path: Path) -> None:
    (tmp_path / "x-Q4_K_M.gguf").write_bytes(b"")
    with pytest.raises(BadValueError, match="GGUF") as caught:
        read_checkpoint(str(tmp_path))
    assert "x-Q4_K_M.gguf" in caught.value.fix


@pytest.mark.parametrize("model", ["/nowhere/model", "./nope", "", "justaname", "a/b/c", "x.gguf", "a/Y.GGUF"])
def test_a_path_that_is_not_there_is_a_bad_value(model: str) -> None:
    with pytest.raises(BadValueError, match="does not exist"):
        read_checkpoint(model)


def test_a_folder_without_config_json_is_a_bad_value(tmp_path: Path) -> None:
    with pytest.raises(BadValueError, match=r"no config\.json"):
        read_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe\x00", b"[" * 200_000, b'{"a": ' + b"9" * 5000 + b"}", b"\x00"]
)
def test_damaged_json_is_a_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(BadConfigError, match=r"config\.json"):
        read_checkpoint(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "told", "fix"),
    [
        ("compose.yaml", b"services:\n", "may hold the command", "--command "),
        ("serve.sh", b"vllm serve x\n", "may hold the command", "--command "),
        ("weights.pt", b"\x80\x02", "holds weights", "the folder"),
        ("kvbudget.toml", b"[gate]\n", "reviewed budget", "kvbudget check "),
    ],
)
def test_a_file_of_another_kind_is_told_where_it_belongs(
    tmp_path: Path, name: str, content: bytes, told: str, fix: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadConfigError, match=told) as caught:
        read_checkpoint(str(path))
    assert fix in caught.value.fix
    path.write_text('{"model_type": "llama"}')  # a name alone refuses nothing
    assert read_checkpoint(str(path)).config == {"model_type": "llama"}


def test_a_huge_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(MAX_JSON_BYTES + 1)
    with pytest.raises(BadConfigError, match="larger than"):
        read_json(str(path))


def test_a_directory_in_place_of_a_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(BadConfigError, match="cannot be read"):
        read_json(str(tmp_path))


def test_a_name_that_cannot_be_printed_is_cleaned(tmp_path: Path) -> None:
    folder = os.path.join(os.fsencode(tmp_path), b"bad\xff\x1bname")
    os.mkdir(folder)
    with open(os.path.join(folder, b"config.json"), "w", encoding="utf-8") as file:
        json.dump({}, file)
    assert read_checkpoint(os.fsdecode(folder)).name == "bad??name"


def test_a_snapshot_of_the_hub_cache_is_named_by_its_model(tmp_path: Path) -> None:
    folder = tmp_path / "models--nvidia--Qwen3-8B-NVFP4" / "snapshots" / "0a1b2c"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert read_checkpoint(str(folder)).name == "nvidia/Qwen3-8B-NVFP4"
    assert read_checkpoint(str(folder / "config.json")).name == "nvidia/Qwen3-8B-NVFP4"


def test_no_string_of_a_config_can_steer_a_terminal_and_none_is_endless(tmp_path: Path) -> None:
    config = {
        "architectures": ["Llama\x1b[31m\x07\u202eX"],
        "quantization_config": {"quant_method": "\x1b]0;x\n" + "z" * 5000, "\x1b[1m": 1},
        "plain": "Qwen3 für alle",
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = read_checkpoint(str(tmp_path)).config
    assert isinstance(found, dict)
    assert found["architectures"] == ["Llama?[31m??X"]
    assert found["quantization_config"]["quant_method"].startswith("?]0;x?zz")
    assert len(found["quantization_config"]["quant_method"]) == MAX_TEXT_CHARS
    assert found["quantization_config"]["?[1m"] == 1
    assert found["plain"] == config["plain"]


def test_a_config_nested_as_deep_as_json_allows_is_cleaned(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a":' * 900 + '"\\u001b"' + "}" * 900)
    found = read_checkpoint(str(tmp_path)).config
    while isinstance(found, dict):
        found = found["a"]
    assert found == "?"
