"""Decides how many bytes the weights of a checkpoint are, from safetensors headers or the index; tensors are not read.

Format: 8 bytes little-endian header length, then a JSON object name -> {dtype, shape, data_offsets}, then the data.
"""

import gc
import json
import os
from typing import NamedTuple

from kvbudget.errors import BadConfigError

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format itself
MAX_FILES = 4096
MAX_TENSORS = 500_000  # in one file; Kimi-K2's whole checkpoint has some 280,000
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_MAX_INDEX_BYTES = 64 * 1024**2
_NO_WEIGHTS = ("consolidated", "adapter_")  # the same weights once more; those of a LoRA adapter
_FLOATS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


class Tensors(NamedTuple):
    """Bytes by dtype as stored; `by_dtype` is empty when only an index told the total, or a GGUF file.

    `draft_bytes`: of the built-in draft module (MTP), which is part of the total and not loaded unless asked for.
    `draft_unsized`: it is part of the total, but only an index was there, which does not tell its size.
    """

    by_dtype: dict[str, int]
    total_bytes: int
    files: int
    draft_bytes: int = 0
    draft_unsized: bool = False

    def without_draft(self, part: int, whole: int) -> "Tensors":
        """The same with a draft module of unknown size taken out, which is `part` of `whole` bytes by the count."""
        if not self.draft_unsized or not 0 < part < whole:
            return self
        return self._replace(draft_bytes=self.total_bytes * part // whole, draft_unsized=False)

    def loaded_bytes(self, element_bytes: int, *, quantised: bool) -> int:
        """Bytes once loaded: an engine casts plain float checkpoints to its own type; quantised ones keep their own.

        Without the draft module.
        """
        if quantised or not self.by_dtype:
            return self.total_bytes - self.draft_bytes
        loaded = sum(
            size // _FLOATS[dtype] * element_bytes if dtype in _FLOATS else size
            for dtype, size in self.by_dtype.items()
        )
        return loaded * (self.total_bytes - self.draft_bytes) // self.total_bytes if self.draft_bytes else loaded


_Sizes = tuple[dict[str, int], int]  # bytes by dtype, and those of the draft module among them


def tensors_in(folder: str, layers: int | None = None) -> Tensors | None:
    """The weights of a checkpoint folder, None when it has none. Raises BadConfigError for damaged or missing files.

    `layers`: how many the model has; those with a higher number are of the draft module.
    """
    index = os.path.join(folder, INDEX)
    if os.path.isfile(index):
        return _indexed(folder, index, layers)
    single = os.path.join(folder, SINGLE)
    names = [SINGLE] if os.path.isfile(single) else _loose_files(folder)
    return _headers(folder, names, layers) if names else None


def tensors_of_header(header: bytes, name: str, layers: int | None = None) -> Tensors:
    """The weights of one file of which only the header is there."""
    return _summed([_sizes(header, name, None, layers)])


def total_of_index(data: bytes, layers: int | None = None) -> Tensors:
    """The weights that an index alone tells."""
    return _total(_index(data), layers)


def _loose_files(folder: str) -> list[str]:
    """Safetensors files without an index. Raises BadConfigError where one of a numbered set is missing."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    names = [name for name in names if name.endswith(".safetensors") and not name.startswith(_NO_WEIGHTS)]
    names = [name for name in names if os.path.isfile(os.path.join(folder, name))]  # a FIFO would never end
    missing = _missing_shard(names)
    if missing:
        raise BadConfigError(
            f"{missing} is missing, and there is no {INDEX}", fix="finish the download, or give --weights"
        )
    return names


def _missing_shard(names: list[str]) -> str:
    """The first file of a set `NAME-00001-of-00004.safetensors` that is not there; "" when every set is whole."""
    for name in names:
        stem, of, count = name.removesuffix(".safetensors").rpartition("-of-")
        start, dash, number = stem.rpartition("-")
        if not (of and dash and _is_number(count) and _is_number(number)):
            continue
        for wanted in range(1, int(count) + 1):
            shard = f"{start}-{wanted:0{len(number)}}-of-{count}.safetensors"
            if shard not in names:
                return shard
    return ""


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= len("00001")


def _indexed(folder: str, index: str, layers: int | None) -> Tensors:
    document = _index(_read(index, 0, _MAX_INDEX_BYTES + 1))
    names = document[1]
    _refuse_many(names)
    there = [name for name in names if os.path.isfile(os.path.join(folder, name))]
    if there and len(there) < len(names):
        missing = next(name for name in names if name not in there)
        raise BadConfigError(
            f"{INDEX}: {len(names) - len(there)} of {len(names)} shards are missing, the first is {missing[:80]}",
            fix="finish the download, or give --weights",
        )
    return _headers(folder, there, layers) if there else _total(document, layers)


def _index(data: bytes) -> tuple[dict[str, object], list[str]]:
    """(the parsed index, the files that it names)."""
    document = _json(data, INDEX, _MAX_INDEX_BYTES)
    files = document.get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise BadConfigError(f"{INDEX}: weight_map is missing or no map of file names", fix="download it again")
    names = sorted(set(files.values()))
    if any("/" in name or "\0" in name for name in names):
        raise BadConfigError(f"{INDEX}: weight_map points outside its folder", fix="download it again")
    return document, names


def _total(index: tuple[dict[str, object], list[str]], layers: int | None) -> Tensors:
    metadata = index[0].get("metadata")
    total = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(total, float) and total.is_integer():
        total = int(total)
    if isinstance(total, bool) or not isinstance(total, int) or total <= 0:
        raise BadConfigError(f"{INDEX}: metadata.total_size is no positive number of bytes", fix="give --weights")
    names = index[0].get("weight_map")
    drafts = isinstance(names, dict) and any(_is_draft(name, layers) for name in names)
    return Tensors({}, total, len(index[1]), draft_unsized=drafts)


def _headers(folder: str, names: list[str], layers: int | None) -> Tensors:
    _refuse_many(names)
    return _summed([_header(os.path.join(folder, name), name, layers) for name in names])


def _refuse_many(names: list[str]) -> None:
    """Before the disk is asked for each of them."""
    if len(names) > MAX_FILES:
        raise BadConfigError(f"{len(names)} safetensors files, more than {MAX_FILES}", fix="give --weights")


def _summed(files: list[_Sizes]) -> Tensors:
    by_dtype: dict[str, int] = {}
    for sizes, _ in files:
        for dtype, size in sizes.items():
            by_dtype[dtype] = by_dtype.get(dtype, 0) + size
    return Tensors(by_dtype, sum(by_dtype.values()), len(files), sum(drafts for _, drafts in files))


def _is_draft(name: str, layers: int | None) -> bool:
    """`mtp.` modules, and layers past the last one (DeepSeek, GLM)."""
    if name.startswith("mtp.") or ".mtp." in name or name.startswith("model.mtp"):
        return True
    if layers is None or not name.startswith(("model.layers.", "layers.")):
        return False
    number = name.removeprefix("model.").split(".", 2)[1]
    return number.isdecimal() and len(number) < 6 and int(number) >= layers


def _header(path: str, name: str, layers: int | None) -> _Sizes:
    """What the tensors in one file take, checked against the file's size."""
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
    return _sizes(_read(path, 8, length), name, size - 8 - length, layers)


def _sizes(header: bytes, name: str, data_bytes: int | None, layers: int | None) -> _Sizes:
    """`data_bytes`: what follows the header, None when that is not known."""
    if header.count(b"data_offsets") > MAX_TENSORS:
        raise BadConfigError(f"{name[:100]}: more than {MAX_TENSORS} tensors", fix="give --weights")
    by_dtype: dict[str, int] = {}
    drafts = 0
    for key, entry in _json(header, name, MAX_HEADER_BYTES).items():
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
        if data_bytes is not None and offsets[1] > data_bytes:
            raise _damaged(name, "it is shorter than its tensors")
        size = offsets[1] - offsets[0]
        by_dtype[dtype] = by_dtype.get(dtype, 0) + size
        if _is_draft(key, layers):
            drafts += size
    return by_dtype, drafts


def _json(data: bytes, name: str, limit: int) -> dict[str, object]:
    if len(data) > limit:
        raise _damaged(os.path.basename(name), f"larger than {limit} bytes")
    # A tensor has three brackets and a name of an index none: what has many more is no such file, and slow to build.
    if data.count(b"[") + data.count(b"{") > 4 * MAX_TENSORS + 1000:
        raise _damaged(os.path.basename(name), "nested far more than tensors are")
    collecting = gc.isenabled()
    gc.disable()  # it would look through all that is being built, again and again
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(os.path.basename(name), "no valid JSON") from error
    finally:
        if collecting:
            gc.enable()
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
