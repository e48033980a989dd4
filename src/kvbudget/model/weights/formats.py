"""Decides how many bytes a matrix takes in a quantised format: its elements, and the scales and zeros beside them."""

from typing import NamedTuple

_SCALE_BYTES = 4  # vLLM 0.32 keeps the scales of fp8 and int8 weights as float32


class Format(NamedTuple):
    """One weight format. Elements have `bits` bits; the other sizes are of what stands beside them.

    `group`: so many elements of a row share a scale of `scale_bytes` and a zero point of `zero_bits` (-1: the whole
    row). `block`: (rows, columns) that share one float32 scale. `row_bytes`, `matrix_bytes`: for each row, each matrix.
    """

    name: str
    bits: int
    group: int = 0
    scale_bytes: int = 0
    zero_bits: int = 0
    block: tuple[int, int] | None = None
    row_bytes: int = 0
    matrix_bytes: int = 0

    def size(self, rows: int, columns: int) -> int:
        """Bytes of one matrix."""
        size = -(-rows * columns * self.bits // 8) + rows * self.row_bytes + self.matrix_bytes
        if self.group:
            groups = rows * (1 if self.group < 0 else -(-columns // self.group))
            size += groups * self.scale_bytes + -(-groups * self.zero_bits // 8)
        if self.block is not None:
            size += -(-rows // self.block[0]) * -(-columns // self.block[1]) * _SCALE_BYTES
        return size


FP8 = Format("fp8", 8, matrix_bytes=2 * _SCALE_BYTES)  # of the weight and of its input
FP8_ROWS = Format("fp8", 8, row_bytes=_SCALE_BYTES)
INT8_ROWS = Format("int8", 8, row_bytes=_SCALE_BYTES)
INT8 = Format("int8", 8, matrix_bytes=2 * _SCALE_BYTES)
NVFP4 = Format("nvfp4", 4, group=16, scale_bytes=1, matrix_bytes=2 * _SCALE_BYTES)
MXFP4 = Format("mxfp4", 4, group=32, scale_bytes=1)
MXFP8 = Format("mxfp8", 8, group=32, scale_bytes=1)
NF4 = Format("nf4", 4, group=64, scale_bytes=_SCALE_BYTES)


def fp8_blocks(rows: int, columns: int) -> Format:
    """fp8 with one scale for each block."""
    return Format("fp8", 8, block=(rows, columns))


def grouped_int(bits: int, group: int, *, zeros: bool) -> Format:
    """Integers with a 2-byte scale for each group of a row, and a zero point of the same bits (GPTQ, AWQ, W4A16)."""
    return Format(f"int{bits}", bits, group=group, scale_bytes=2, zero_bits=bits if zeros else 0)
