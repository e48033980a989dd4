"""Decides how many bytes the weights on disk are, from safetensors headers or the index; tensors are not read.

Format: 8 bytes little-endian header length, then a JSON object name -> {dtype, shape, data_offsets}, then the data.
"""

import json
import os
from typing import NamedTuple

from kvbudget.errors import BadConfigError

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format itself
MAX_FILES = 4096
_MAX_INDEX_BYTES = 64 * 1024**2
_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class Tensors(NamedTuple):
    """Bytes by dtype as stored; `by_dtype` is empty when only an index told the total."""

    by_dtype: dict[str, int]
    total_bytes: int
    files: int

    def loaded_bytes(self, element_bytes: int, *, quantised: bool) -> int:
        """Bytes once loaded: an engine casts plain float checkpoints to its own type; quantised ones keep their own."""
        if quantised or not self.by_dtype:
            return self.total_bytes
        return sum(
            size // _FLOATS[dtype] * element_bytes if dtype in _FLOATS else size
            for dtype, size in self.by_dtype.items()
        )


def tensors_in(folder: str) -> Tensors | None:
    """The weights of a checkpoint folder, None when it has none. Raises BadConfigError for damaged or missing files."""
    index = os.path.join(folder, _INDEX)
    if os.path.isfile(index):
        return _indexed(folder, index)
    single = os.path.join(folder, _SINGLE)
    names = [_SINGLE] if os.path.isfile(single) else _loose_files(folder)
    return _headers(folder, names) if names else None


def _loose_files(folder: str) -> list[str]:
    """Safetensors files without an index; `consolidated*` hold the same weights once more."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    names = [name for name in names if name.endswith(".safetensors") and not name.startswith("consolidated")]
    return [name for name in names if os.path.isfile(os.path.join(folder, name))]  # a FIFO would never end


def _indexed(folder: str, index: str) -> Tensors:
    document = _json(_read(index, 0, _MAX_INDEX_BYTES + 1), index, _MAX_INDEX_BYTES)
    files = document.get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise BadConfigError(f"{_INDEX}: weight_map is missing or no map of file names", fix="download it again")
    names = sorted(set(files.values()))
    if any(os.path.basename(name) != name for name in names):
        raise BadConfigError(f"{_INDEX}: weight_map points outside its folder", fix="download it again")
    there = [name for name in names if os.path.isfile(os.path.join(folder, name))]
    if there and len(there) < len(names):
        missing = next(name for name in names if name not in there)
        raise BadConfigError(
            f"{_INDEX}: {len(names) - len(there)} of {len(names)} shards are missing, the first is {missing[:80]}",
            fix="finish the download, or give --weights",
        )
    if there:
        return _headers(folder, there)
    metadata = document.get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if isinstance(total, bool) or not isinstance(total, int) or total <= 0:
        raise BadConfigError(f"{_INDEX}: metadata.total_size is no positive number of bytes", fix="give --weights")
    return Tensors({}, total, len(names))


def _headers(folder: str, names: list[str]) -> Tensors:
    if len(names) > MAX_FILES:
        raise BadConfigError(f"{len(names)} safetensors files, more than {MAX_FILES}", fix="give --weights")
    by_dtype: dict[str, int] = {}
    for name in names:
        for dtype, size in _header(os.path.join(folder, name), name):
            by_dtype[dtype] = by_dtype.get(dtype, 0) + size
    return Tensors(by_dtype, sum(by_dtype.values()), len(names))


def _header(path: str, name: str) -> list[tuple[str, int]]:
    """(dtype, bytes) of every tensor in one file, checked against the file's size."""
    prefix = _read(path, 0, 8)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or not 2 <= length <= MAX_HEADER_BYTES:
        raise _damaged(name, "its header length is impossible")
    try:
        size = os.path.getsize(path)
    except OSError as error:
        raise _damaged(name, str(error.strerror)) from error
    if 8 + length > size:
        raise _damaged(name, "it ends inside its header")
    tensors = []
    for key, entry in _json(_read(path, 8, length), name, MAX_HEADER_BYTES).items():
        if key == "__metadata__":
            continue
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        dtype = entry.get("dtype") if isinstance(entry, dict) else None
        if (
            not isinstance(dtype, str)
            or not isinstance(offsets, list)
            or len(offsets) != 2
            or not all(type(offset) is int for offset in offsets)
            or not 0 <= offsets[0] <= offsets[1]
        ):
            raise _damaged(name, f"tensor {key[:60]!r} has no valid dtype and data_offsets")
        if 8 + length + offsets[1] > size:
            raise _damaged(name, "it is shorter than its tensors")
        tensors.append((dtype, offsets[1] - offsets[0]))
    return tensors


def _json(data: bytes, name: str, limit: int) -> dict[str, object]:
    if len(data) > limit:
        raise _damaged(os.path.basename(name), f"larger than {limit} bytes")
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(os.path.basename(name), "no valid JSON") from error
    if not isinstance(document, dict):
        raise _damaged(os.path.basename(name), "no JSON object")
    return document


def _read(path: str, start: int, count: int) -> bytes:
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(count)
    except OSError as error:
        raise _damaged(os.path.basename(path), str(error.strerror)) from error


def _damaged(name: str, why: str) -> BadConfigError:
    return BadConfigError(f"{name[:100]}: {why}", fix="download it again, or give --weights")
