"""Decides how much memory SGLang leaves free beside weights and pool: the default of --mem-fraction-static.

`arg_groups/memory_hook.py` (0.5.23), `server_args.py` (before 0.5.19). Memory in MiB, as the driver reports it.
"""

from typing import NamedTuple

from kvbudget.errors import UnsupportedError
from kvbudget.units import is_digits

Version = tuple[int, int, int]
NEWEST: Version = (0, 5, 23)
OLDEST: Version = (0, 4, 0)
_NEWEST_PATCH = 999
_FLASH_GRAPHS = (0, 5, 10)  # prefill graphs are captured by default
_OWN_GRAPH_SWITCH = (0, 5, 15)  # disabled decode graphs reserve nothing
_FORMULA = (0, 5, 3)
_TABLE = (0, 4, 8)
_FLOOR_FROM = 60 * 1024
_FLOOR = 10 * 1024


class Batch(NamedTuple):
    """Defaults that follow the card: tokens of one prefill chunk, and the largest batch of a decode graph."""

    chunk: int
    graph_batch: int


def version_of(text: str) -> Version:
    """(0, 5, 23) of "0.5.23.post1"; "" and "0.5" are the newest. Raises UnsupportedError."""
    if not text:
        return NEWEST
    parts = text.removeprefix("v").split(".")
    numbers = [int(part) if is_digits(part) and len(part) <= 3 else -1 for part in parts[:3]]
    if len(numbers) == 2:
        numbers.append(NEWEST[2] if numbers == [0, 5] else _NEWEST_PATCH)
    found = (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else (-1, -1, -1)
    if min(found) < 0 or not OLDEST <= found <= NEWEST:
        raise UnsupportedError(
            f"--engine sglang@{text[:20]}: its pool rule is not known; known are 0.4.0 to 0.5.23",
            fix="use --engine sglang@0.5.23 or the version that you run",
        )
    return found


def batch_of(version: Version, memory: int, ranks: int) -> Batch:
    """`memory` of one card in MiB, 0 when unknown."""
    small = ranks < 4
    if version < _TABLE:
        low = 0 < memory < 25_000
        return Batch(2048 if low else 8192, (8 if small else 80) if low else 160)
    if not memory:
        return Batch(4096, 160)
    if version < _FORMULA:
        chunk = 2048 if memory < 35 * 1024 else 8192 if memory < 160 * 1024 else 16384
        return Batch(chunk, (8 if small else 80) if memory < 35 * 1024 else 160)
    if memory < 20 * 1024:
        return Batch(2048, 8)
    if memory < 35 * 1024:
        if version >= (0, 5, 21):
            return Batch(4096, 48 if small else 160)
        return Batch(2048, (16 if version < (0, 5, 5) else 24) if small else 80)
    if memory < 60 * 1024:
        return Batch(4096, 32 if small else 160)
    if memory < 160 * 1024:
        return Batch(8192, 256 if small else 512)
    return Batch(16384, 512)


def static_fraction(
    version: Version, memory: int, batch: Batch, *, tensor: int, stages: int, latent: bool, graphs: bool, drafts: bool
) -> float:
    """The share of the memory for weights and pool when --mem-fraction-static is not given.

    `latent`: MLA kernels; `graphs`: decode graphs are captured; `drafts`: a draft model runs.
    """
    if version < _TABLE:
        rows = ((16, 0.79), (8, 0.81), (4, 0.85), (2, 0.87))
        return next((share for least, share in rows if tensor >= least), 0.88)
    if not memory:
        return 0.95 if version >= (0, 5, 21) else 0.88
    reserved = _reserved_by_table(memory, tensor * stages) if version < _FORMULA else 0.0
    if version >= _FORMULA:
        reserved = 512 + max(batch.chunk, 2048) * 1.5 + tensor * stages / 8 * 1024
        if graphs or version < _OWN_GRAPH_SWITCH:
            reserved += batch.graph_batch * 2
        if version >= _FLASH_GRAPHS:
            reserved += 1536 if latent else _prefill_graphs(batch.chunk) * 8
        if memory > _FLOOR_FROM:
            reserved = max(reserved, _FLOOR)
    if drafts and version < (0, 5, 14):
        reserved += 4 * 1024 if version >= (0, 5, 10) else 2 * 1024
    return round((memory - reserved) / memory, 3)


def _reserved_by_table(memory: int, ranks: int) -> float:
    """0.4.8 to 0.5.2."""
    if memory < 35 * 1024:
        return (2.8 + ranks / 10) * 1024
    if memory < 160 * 1024:
        return ((9.5 if memory < 90 * 1024 else 12) + ranks / 2) * 1024
    return 32 * 1024


def _prefill_graphs(chunk: int) -> int:
    """How many sizes are captured: `arg_groups/cuda_graph_hook.py`."""
    steps = ((4, 33, 4), (48, 257, 16), (288, 513, 32), (576, 1025, 64), (1280, 4097, 256), (4608, chunk + 1, 512))
    return sum(size <= chunk for first, end, step in steps for size in range(first, end, step))
