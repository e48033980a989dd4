"""Tokens, blocks and bytes: three units that are never mixed, and the named roundings between them."""

import re
from math import inf, isfinite
from typing import NewType

from kvbudget.errors import BadValueError

Tokens = NewType("Tokens", int)
Blocks = NewType("Blocks", int)
Bytes = NewType("Bytes", int)

KIB = 1024
MIB = 1024**2
GIB = 1024**3

_BYTE_UNITS = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KIB": KIB,
    "MIB": MIB,
    "GIB": GIB,
    "TIB": 1024**4,
}
_LENGTH_UNITS = {"": 1, "k": 1024, "K": 1024, "m": 1024**2, "M": 1024**2}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
# Far beyond any machine; keeps arithmetic on hostile input finite and error messages short.
_MAX_DIGITS = 24
# `int` and `float` also take 1_000, nan, inf, a leading + and the digits of any script: nobody means them.
_WHOLE = re.compile(r"-?[0-9]{1,40}")
_DECIMAL = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3})?")
_LONGEST_NUMBER = 40


def blocks_for(tokens: int, block_size: int) -> Blocks:
    """Blocks that hold `tokens` tokens, rounded up: the last one may be partly empty."""
    return Blocks(-(-tokens // block_size))


def whole_blocks(available: int, bytes_per_block: int) -> Blocks:
    """Whole blocks that `available` bytes hold, rounded down."""
    return Blocks(available // bytes_per_block)


def is_digits(text: str) -> bool:
    """Whether it is nothing but the digits 0 to 9, so that `int` reads it."""
    return text.isascii() and text.isdigit()


def whole_number(text: str) -> int:
    """A whole number, digits and perhaps a minus. Raises ValueError for all else that `int` would take."""
    if _WHOLE.fullmatch(text) is None:
        raise ValueError(f"{text[:_LONGEST_NUMBER]!r} is no whole number")
    return int(text)


def decimal_number(text: str) -> float:
    """A finite number in decimal notation, `0.5` or `1e-3`. Raises ValueError for all else that `float` would take."""
    number = float(text) if len(text) <= _LONGEST_NUMBER and _DECIMAL.fullmatch(text) else inf
    if not isfinite(number):
        raise ValueError(f"{text[:_LONGEST_NUMBER]!r} is no number")
    return number


def any_number(text: str) -> float:
    """As `decimal_number`; `nan` and `inf` as well, for whoever refuses them in its own words."""
    return float(text) if text.lower().lstrip("-") in ("nan", "inf") else decimal_number(text)


def parse_size(text: str, what: str = "size") -> Bytes:
    """Bytes from `24GiB` (1024-based), `80GB` (1000-based) or a plain number of bytes.

    Raises BadValueError for anything else; fractions are allowed before a unit and rounded down.
    """
    match = _SIZE.fullmatch(text)
    unit = match[2].upper() if match else None
    if match is None or unit not in _BYTE_UNITS or len(match[1]) > _MAX_DIGITS:
        raise BadValueError(f"{what}: {text[:40]!r} is not a size", fix="write 24GiB, 80GB or a number of bytes")
    return Bytes(_scaled(match[1], _BYTE_UNITS[unit]))


def parse_length(text: str, what: str = "length") -> Tokens:
    """Tokens from `8192`, `8k` or `1m` (1024-based, as model cards use them). Raises BadValueError."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2] not in _LENGTH_UNITS or len(match[1]) > _MAX_DIGITS:
        raise BadValueError(
            f"{what}: {text[:40]!r} is not a length in tokens", fix="write 8192, 8k (= 8192) or 1m (= 1048576)"
        )
    return Tokens(_scaled(match[1], _LENGTH_UNITS[match[2]]))


def _scaled(number: str, factor: int) -> int:
    """`number` times `factor`, exact (no float): 0.1GiB of a decimal string must not drift."""
    whole, _, fraction = number.partition(".")
    return int(whole) * factor + (int(fraction) * factor // 10 ** len(fraction) if fraction else 0)


def format_size(size: int) -> str:
    """Bytes for people, 1024-based: `16.00 GiB`, `128 KiB`, `512 B`."""
    for unit, factor in (("TiB", 1024 * GIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(size) >= factor:
            value = size / factor
            return f"{value:,.0f} {unit}" if unit == "KiB" and value == int(value) else f"{value:,.2f} {unit}"
    return f"{size} B"
