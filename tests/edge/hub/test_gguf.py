"""GGUF files written by the reference writer, and damaged ones."""

import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES

from kvbudget.edge.hub.folder import read_checkpoint
from kvbudget.edge.hub.gguf import BLOCK_SIZES, Counted, read_file
from kvbudget.errors import BadConfigError, UnsupportedError


def write(path: Path, architecture: str = "llama") -> None:
    """A tiny model with an F32 and a Q8_0 tensor."""
    writer = GGUFWriter(str(path), architecture)
    writer.add_name("Tiny")
    writer.add_block_count(2)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(2048)
    writer.add_feed_forward_length(128)
    writer.add_token_list([f"t{number}" for number in range(300)])
    writer.add_tensor("token_embd.weight", np.zeros((300, 64), np.float32))
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((128, 68), np.uint8), raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_metadata_and_tensor_bytes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write(path)
    found = read_file(str(path))
    assert found.metadata["general.architecture"] == "llama"
    assert found.metadata["llama.block_count"] == 2
    assert found.metadata["tokenizer.ggml.tokens"] == Counted(300)
    assert found.tensor_names == {"token_embd.weight", "blk.0.ffn_up.weight"}
    assert found.tensor_bytes == 300 * 64 * 4 + 128 * 68


def test_a_checkpoint_comes_of_it(tmp_path: Path) -> None:
    path = tmp_path / "Tiny-Q8_0.gguf"
    write(path)
    found = read_checkpoint(str(path))
    assert (found.name, found.source, found.gguf) == ("Tiny-Q8_0", "gguf", True)
    assert found.tensors is not None
    assert found.tensors.loaded_bytes(2, quantised=False) == 300 * 64 * 4 + 128 * 68
    assert len(found.fingerprint) == 64


def test_block_sizes_are_those_of_the_reference() -> None:
    reference = {kind.value: size for kind, size in GGML_QUANT_SIZES.items()}
    assert {kind: reference[kind] for kind in BLOCK_SIZES if kind in reference} == {
        kind: size for kind, size in BLOCK_SIZES.items() if kind in reference
    }
    assert set(reference) <= set(BLOCK_SIZES)


def test_parts_are_summed_and_a_missing_one_is_named(tmp_path: Path) -> None:
    first, second = tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"
    for path, split in ((first, 0), (second, 1)):
        writer = GGUFWriter(str(path), "llama")
        writer.add_uint16("split.count", 2)
        writer.add_uint16("split.no", split)
        for key, value in (("block_count", 2), ("embedding_length", 64), ("context_length", 128), ("vocab_size", 9)):
            writer.add_uint32(f"llama.{key}", value)
        writer.add_uint32("llama.attention.head_count", 4)
        writer.add_tensor(f"t{split}", np.zeros((2, 64), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    found = read_checkpoint(str(first)).tensors
    assert found is not None
    assert (found.total_bytes, found.files) == (2 * 2 * 64 * 4, 2)
    with pytest.raises(BadConfigError, match="one of 2 parts"):
        read_checkpoint(str(second))
    second.unlink()
    with pytest.raises(BadConfigError, match="m-00002-of-00002"):
        read_checkpoint(str(first))


def test_every_cut_file_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write(path)
    whole = path.read_bytes()
    for length in [*range(0, 200), *range(200, len(whole), 997), len(whole) - 1]:
        path.write_bytes(whole[:length])
        with pytest.raises(BadConfigError, match=r"tiny\.gguf"):
            read_file(str(path))


def head(version: int = 3, tensors: int = 0, entries: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + rest


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value)) + value.encode()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "no valid GGUF"),
        (b"GGML" + bytes(100), "does not begin"),
        (head(tensors=2**60), "impossible"),
        (head(entries=2**60), "impossible"),
        (head(entries=1, rest=struct.pack("<Q", 2**63)), "impossible"),
        (head(entries=1, rest=text("k") + struct.pack("<IQ", 8, 2**62)), "ends inside"),
        (head(entries=1, rest=text("k") + struct.pack("<IIQ", 9, 8, 2**60)), "longer than the file"),
        (head(entries=1, rest=text("k") + struct.pack("<IIQ", 9, 4, 2**60)), "longer than the file"),
        (head(entries=1, rest=text("k") + struct.pack("<IIQ", 9, 9, 1)), "type 9"),
        (head(entries=1, rest=text("k") + struct.pack("<I", 77)), "type 77"),
        (head(tensors=1, rest=text("t") + struct.pack("<I", 99)), "99 dimensions"),
        (head(tensors=1, rest=text("t") + struct.pack("<IQIQ", 1, 31, 8, 0)), "no multiple"),
        (head(tensors=1, rest=text("t") + struct.pack("<IQIQ", 1, 32, 0, 0)), "shorter than its tensors"),
        (head(entries=1, rest=text("general.alignment") + struct.pack("<II", 4, 0)), "alignment"),
    ],
)
def test_a_hostile_file_is_named_with_what_is_wrong(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(BadConfigError, match=why):
        read_file(str(path))


@pytest.mark.parametrize(
    "data", [head(version=1), head(version=9), head(tensors=1, rest=text("t") + struct.pack("<IQIQ", 1, 32, 999, 0))]
)
def test_what_is_not_known_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(UnsupportedError, match="unknown"):
        read_file(str(path))


def test_a_big_endian_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    entry = struct.pack(">Q", 1) + b"k" + struct.pack(">II", 4, 7)
    path.write_bytes(b"GGUF" + struct.pack(">IQQ", 3, 0, 1) + entry)
    assert read_file(str(path)).metadata == {"k": 7}
