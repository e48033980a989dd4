"""Bytes of the weights on disk, from headers and index; damaged downloads are named."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvbudget.edge.hub import safetensors
from kvbudget.edge.hub.safetensors import MAX_FILES, MAX_HEADER_BYTES, Tensors, tensors_in
from kvbudget.errors import BadConfigError


def write(path: Path, tensors: dict[str, tuple[str, int]], *, missing: int = 0) -> None:
    """One safetensors file; `missing` bytes are cut off its end."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header).encode()
    path.write_bytes((len(raw).to_bytes(8, "little") + raw + bytes(offset))[: 8 + len(raw) + offset - missing])


def index(folder: Path, files: dict[str, str], total: object = None) -> None:
    document = {"metadata": {"total_size": total}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))


def test_a_folder_without_weights_has_none(tmp_path: Path) -> None:
    assert tensors_in(str(tmp_path)) is None


def test_one_file_is_summed_by_dtype(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": ("BF16", 200), "b": ("F32", 40), "c": ("BF16", 2)})
    assert tensors_in(str(tmp_path)) == Tensors({"BF16": 202, "F32": 40}, 242, 1)


def test_shards_are_those_that_the_index_names(tmp_path: Path) -> None:
    write(tmp_path / "model-1.safetensors", {"a": ("BF16", 100)})
    write(tmp_path / "model-2.safetensors", {"b": ("BF16", 50)})
    write(tmp_path / "consolidated.safetensors", {"a": ("BF16", 150)})
    index(tmp_path, {"a": "model-1.safetensors", "b": "model-2.safetensors"}, 150)
    assert tensors_in(str(tmp_path)) == Tensors({"BF16": 150}, 150, 2)


def test_loose_files_are_summed_without_the_consolidated_copy(tmp_path: Path) -> None:
    write(tmp_path / "x.safetensors", {"a": ("F16", 10)})
    write(tmp_path / "consolidated.00.safetensors", {"a": ("F16", 10)})
    found = tensors_in(str(tmp_path))
    assert found is not None
    assert found.total_bytes == 10


def test_an_index_alone_tells_the_total(tmp_path: Path) -> None:
    index(tmp_path, {"a": "model-1.safetensors"}, 16_060_522_496)
    assert tensors_in(str(tmp_path)) == Tensors({}, 16_060_522_496, 1)


def test_plain_floats_are_counted_in_the_engine_s_type_and_quantised_ones_as_stored() -> None:
    tensors = Tensors({"F32": 400, "BF16": 200, "I64": 8}, 608, 1)
    assert tensors.loaded_bytes(2, quantised=False) == 200 + 200 + 8
    assert tensors.loaded_bytes(4, quantised=False) == 400 + 400 + 8
    assert tensors.loaded_bytes(2, quantised=True) == 608


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path / "model-1.safetensors", {"a": ("BF16", 100)})
    index(tmp_path, {"a": "model-1.safetensors", "b": "model-2.safetensors"}, 150)
    with pytest.raises(BadConfigError, match=r"model-2\.safetensors"):
        tensors_in(str(tmp_path))


def test_one_of_several_numbered_files_is_not_taken_for_all_weights(tmp_path: Path) -> None:
    for part in ("00001", "00003"):
        write(tmp_path / f"model-{part}-of-00003.safetensors", {part: ("BF16", 100)})
    with pytest.raises(BadConfigError, match=r"model-00002-of-00003\.safetensors is missing"):
        tensors_in(str(tmp_path))
    write(tmp_path / "model-00002-of-00003.safetensors", {"b": ("BF16", 100)})
    write(tmp_path / "adapter_model.safetensors", {"lora": ("BF16", 7)})
    whole = tensors_in(str(tmp_path))
    assert whole is not None
    assert whole.total_bytes == 300


def test_a_file_shorter_than_its_tensors_is_an_unfinished_download(tmp_path: Path) -> None:
    write(tmp_path / "model.safetensors", {"a": ("BF16", 100)}, missing=1)
    with pytest.raises(BadConfigError, match="shorter than its tensors"):
        tensors_in(str(tmp_path))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "header length"),
        (b"\x01", "header length"),
        ((MAX_HEADER_BYTES + 1).to_bytes(8, "little"), "header length"),
        ((2**63).to_bytes(8, "little"), "header length"),
        ((1000).to_bytes(8, "little") + b"{}", "ends inside"),
        ((2).to_bytes(8, "little") + b"[]", "no JSON object"),
        ((2).to_bytes(8, "little") + b"{x", "no valid JSON"),
        ((8).to_bytes(8, "little") + b'{"a": 1}', "data_offsets"),
        ((51).to_bytes(8, "little") + b'{"a": {"dtype": "BF16", "data_offsets": [-1, 9999]}}', "data_offsets|JSON"),
        ((12).to_bytes(8, "little") + b'{"a": {}}   ', "data_offsets"),
    ],
)
def test_a_damaged_header_is_named_with_the_file(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(BadConfigError, match=rf"model\.safetensors: .*({why})"):
        tensors_in(str(tmp_path))


@pytest.mark.parametrize(
    ("files", "total"),
    [
        ({"a": "../../etc/passwd"}, 1),
        ({"a": "sub/x.safetensors"}, 1),
        ({"a": 3}, 1),
        (None, 1),
        ({"a": "x.safetensors"}, None),
        ({"a": "x.safetensors"}, -1),
        ({"a": "x.safetensors"}, True),
        ({"a": "x.safetensors"}, "big"),
    ],
)
def test_a_damaged_index_is_a_clear_error(tmp_path: Path, files: Any, total: object) -> None:
    index(tmp_path, files, total)
    with pytest.raises(BadConfigError, match="index"):
        tensors_in(str(tmp_path))


def test_the_draft_module_is_on_disk_and_not_loaded(tmp_path: Path) -> None:
    write(
        tmp_path / "model.safetensors",
        {
            "model.layers.1.a": ("BF16", 100),
            "model.layers.2.a": ("BF16", 30),
            "mtp.fc": ("BF16", 20),
            "model.visual.layers.7.a": ("BF16", 10),
        },
    )
    found = tensors_in(str(tmp_path), 2)
    assert found is not None
    assert (found.total_bytes, found.draft_bytes) == (160, 50)
    assert found.loaded_bytes(2, quantised=True) == 110
    assert found.loaded_bytes(4, quantised=False) == 220
    unknown = tensors_in(str(tmp_path))
    assert unknown is not None
    assert unknown.draft_bytes == 20


def test_an_index_alone_says_that_there_is_a_draft_module_and_the_count_its_size(tmp_path: Path) -> None:
    index(tmp_path, {"model.layers.2.a": "x.safetensors", "model.layers.1.a": "x.safetensors"}, 1000)
    found = tensors_in(str(tmp_path), 2)
    assert found is not None
    assert found.draft_unsized
    assert found.without_draft(1, 50).loaded_bytes(2, quantised=True) == 980
    plain = tensors_in(str(tmp_path), 3)
    assert plain is not None
    assert plain.without_draft(1, 50) == plain


def test_an_index_that_names_very_many_files_is_refused_before_any_is_looked_for(tmp_path: Path) -> None:
    index(tmp_path, {f"a{number}": f"m{number}.safetensors" for number in range(MAX_FILES + 1)}, 100)
    with pytest.raises(BadConfigError, match=f"{MAX_FILES + 1} safetensors files, more than {MAX_FILES}"):
        tensors_in(str(tmp_path))


def test_a_header_of_more_tensors_than_any_model_has_is_refused_unparsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safetensors, "MAX_TENSORS", 2)
    write(tmp_path / "model.safetensors", dict.fromkeys("ab", ("BF16", 2)))
    assert tensors_in(str(tmp_path)) == Tensors({"BF16": 4}, 4, 1)
    write(tmp_path / "model.safetensors", dict.fromkeys("abc", ("BF16", 2)))
    with pytest.raises(BadConfigError, match="more than 2 tensors"):
        tensors_in(str(tmp_path))
    (tmp_path / "model.safetensors").write_bytes((6000).to_bytes(8, "little") + b'{"a":[' + b"[]," * 1998)
    with pytest.raises(BadConfigError, match="nested"):
        tensors_in(str(tmp_path))
