"""Decides what a GGUF file says of its model: metadata as a config.json, and the bytes of its tensors.

Layout (ggml `docs/gguf.md`, version 2 and 3): magic, version, number of tensors and of metadata entries, the entries,
the tensors' names, shapes, types and offsets, then the data. The file is mapped, its tensors are never read, and every
length is checked against the file before it is used: a plan needs nothing beside the standard library, and a hostile
file cannot make it loop.
"""

import mmap
import os
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

from kvbudget.edge.hub.safetensors import Tensors
from kvbudget.errors import BadConfigError, UnsupportedError

MAX_ENTRIES = 100_000
MAX_TENSORS = 1_000_000
MAX_SPLITS = 4096
_MAX_KEY_BYTES = 65_535
_MAX_DIMENSIONS = 8
_KEPT_STRING_BYTES = 1024
_KEPT_ITEMS = 20_000  # per-layer lists; a vocabulary is only counted
_ALIGNMENT = 32

_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

# ggml type: (elements of a block, bytes of a block), as in gguf-py 0.19 `constants.py: GGML_QUANT_SIZES`.
BLOCK_SIZES: dict[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82),
    23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2),
    34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip


class Counted(NamedTuple):
    """A list that was too long to keep, or strings: only its length."""

    length: int


class GgufFile(NamedTuple):
    """What was read. Metadata values are numbers, strings, lists of numbers, or Counted."""

    metadata: dict[str, object]
    tensor_names: frozenset[str]
    tensor_bytes: int


def read_gguf(path: str) -> tuple[dict[str, object], Tensors]:
    """(a config.json-like mapping, tensors) of one GGUF file, or of all parts when it is the first of several.

    Raises BadConfigError for a damaged or unfinished file, UnsupportedError for an architecture that has no known
    config class.
    """
    from kvbudget.edge.hub.gguf_config import config_of

    first = read_file(path)
    names, size, files = set(first.tensor_names), first.tensor_bytes, 1
    splits = first.metadata.get("split.count")
    if type(splits) is int and splits > 1:
        for part in _parts(path, splits):
            other = read_file(part)
            names |= other.tensor_names
            size += other.tensor_bytes
            files += 1
    return config_of(first.metadata, frozenset(names)), Tensors({}, size, files)


def read_file(path: str) -> GgufFile:
    """Metadata and tensor sizes of one file."""
    name = os.path.basename(path)
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(data, name).file()
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise _damaged(name, str(error)[:80]) from error


def _parts(path: str, splits: int) -> list[str]:
    folder, name = os.path.split(path)
    stem, found, rest = name.rpartition("-of-")
    if splits > MAX_SPLITS or not found or not stem.endswith("-00001"):
        raise BadConfigError(
            f"{_shown(name)}: it is one of {splits} parts", fix="give the first part (NAME-00001-of-0000N.gguf)"
        )
    stem = stem.removesuffix("00001")
    paths = [os.path.join(folder, f"{stem}{number:05d}-of-{rest}") for number in range(2, splits + 1)]
    missing = [part for part in paths if not os.path.isfile(part)]
    if missing:
        raise BadConfigError(
            f"{_shown(name)}: {len(missing)} of {splits} parts are missing, the first is "
            f"{_shown(os.path.basename(missing[0]))}",
            fix="finish the download",
        )
    return paths


class _Reader:
    """One pass over the head of a mapped file."""

    def __init__(self, data: mmap.mmap, name: str) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0
        self._name = name
        self._order = "<"

    def file(self) -> GgufFile:
        try:
            return self._file()
        except struct_error as error:
            raise _damaged(self._name, "it ends inside its metadata") from error

    def _file(self) -> GgufFile:
        if self._data[:4] != b"GGUF":
            raise _damaged(self._name, "it does not begin with GGUF")
        self._at = 4
        version = self._number("I")
        if version > 0xFFFF:  # written on a big-endian machine
            self._order, self._at = ">", 4
            version = self._number("I")
        if version not in (2, 3):
            raise UnsupportedError(f"{_shown(self._name)}: GGUF version {version} is unknown", fix="2 and 3 are known")
        tensors, entries = self._number("Q"), self._number("Q")
        if entries > MAX_ENTRIES or tensors > MAX_TENSORS:
            raise _damaged(self._name, f"{entries} metadata entries and {tensors} tensors are impossible")
        metadata: dict[str, object] = {}
        for _ in range(entries):
            key = self._string(_MAX_KEY_BYTES)
            metadata[key] = self._value(self._number("I"))
        return self._tensors(metadata, tensors)

    def _tensors(self, metadata: dict[str, object], count: int) -> GgufFile:
        names, total, end = set(), 0, 0
        for _ in range(count):
            name = self._string(_MAX_KEY_BYTES)
            dimensions = self._number("I")
            if not 0 < dimensions <= _MAX_DIMENSIONS:
                raise _damaged(self._name, f"tensor {_shown(name)} has {dimensions} dimensions")
            elements = 1
            for _ in range(dimensions):
                elements *= self._number("Q")
            kind, offset = self._number("I"), self._number("Q")
            block = BLOCK_SIZES.get(kind)
            if block is None:
                raise UnsupportedError(f"{_shown(self._name)}: tensor type {kind} is unknown", fix="give --weights")
            if elements % block[0]:
                raise _damaged(self._name, f"tensor {_shown(name)} is no multiple of its type's block")
            size = elements // block[0] * block[1]
            names.add(name)
            total += size
            end = max(end, offset + size)
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if type(alignment) is not int or not 0 < alignment <= 1 << 20:
            raise _damaged(self._name, "general.alignment is no positive number")
        start = -(-self._at // alignment) * alignment
        if count and start + end > self._size:
            raise _damaged(self._name, "it is shorter than its tensors")
        return GgufFile(metadata, frozenset(names), total)

    def _value(self, kind: int) -> object:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise _damaged(self._name, f"metadata type {kind} is unknown")
        return self._scalar(_SCALARS[kind])

    def _array(self) -> object:
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            if count > self._size // 8:
                raise _damaged(self._name, "a list is longer than the file")
            length = Struct(self._order + "Q").unpack_from
            for _ in range(count):
                self._skip(8 + length(self._data, self._at)[0])
            return Counted(count)
        if kind not in _SCALARS:
            raise _damaged(self._name, f"a list of type {kind} is unknown")
        item = Struct(self._order + _SCALARS[kind])
        if count > self._size // item.size:
            raise _damaged(self._name, "a list is longer than the file")
        if count > _KEPT_ITEMS:
            self._skip(count * item.size)
            return Counted(count)
        values = [item.unpack_from(self._data, self._at + number * item.size)[0] for number in range(count)]
        self._skip(count * item.size)
        return values

    def _string(self, longest: int | None = None) -> str:
        length = self._number("Q")
        if longest is not None and length > longest:
            raise _damaged(self._name, f"a name of {length} bytes is impossible")
        start = self._at
        self._skip(length)
        return self._data[start : start + min(length, longest or _KEPT_STRING_BYTES)].decode("utf-8", "replace")

    def _skip(self, count: int) -> None:
        self._at += count
        if self._at > self._size:
            raise _damaged(self._name, "it ends inside its metadata")

    def _number(self, code: str) -> int:
        return int(self._scalar(code))

    def _scalar(self, code: str) -> int | float | bool:
        item = Struct(self._order + code)
        value: int | float | bool = item.unpack_from(self._data, self._at)[0]
        self._at += item.size
        return value


def _damaged(name: str, why: str) -> BadConfigError:
    return BadConfigError(f"{_shown(name)}: no valid GGUF: {why}", fix="download it again")


def _shown(text: str) -> str:
    return "".join(letter if letter.isprintable() and ord(letter) < 0xD800 else "?" for letter in text)[:100]
