"""Decides how many blocks are kept back on purpose: `--margin 5%`, `--margin 0.05` or `--margin 512` (blocks)."""

from math import ceil
from typing import NamedTuple

from kvbudget.errors import BadValueError
from kvbudget.units import Blocks, is_digits


class Margin(NamedTuple):
    """A share of the usable blocks, or a number of them; the other one is 0."""

    fraction: float = 0.0
    blocks: Blocks = Blocks(0)

    def of(self, usable_blocks: int) -> Blocks:
        """Blocks kept back of a pool, rounded up, never more than the pool."""
        return Blocks(min(max(0, usable_blocks), self.blocks or ceil(self.fraction * usable_blocks)))


NO_MARGIN = Margin()


def parse_margin(text: str) -> Margin:
    """Read `5%`, `0.05` (shares) or `512` (blocks). Raises BadValueError; a share is at least 0 and below 1."""
    number = text.strip()
    if is_digits(number) and len(number) <= 12:
        return Margin(blocks=Blocks(int(number)))
    percent = number.endswith("%")
    whole, _, fraction = number.removesuffix("%").strip().partition(".")
    digits = (whole or "0") + fraction
    if is_digits(digits) and len(digits) <= 12 and (whole or fraction):
        share = int(digits) / 10 ** len(fraction) / (100 if percent else 1)
        if share < 1:
            return Margin(fraction=share)
    raise BadValueError(
        f"--margin: {text[:40]!r} is not a share below 100% and no number of blocks", fix="write 5%, 0.05 or 512"
    )
