"""Decides which sizes of memory are sizes: a number that lost its unit would be planned with as if it were meant."""

from kvbudget.errors import BadValueError
from kvbudget.units import MIB, Bytes, parse_size

# Nothing that a size describes is smaller; a number without its unit is.
_LEAST = MIB
_NONE_IS_A_SIZE = ("activation", "overhead")


def memory_size(given: str | int, name: str) -> Bytes:
    """Bytes of a flag or argument, as text with a unit or as a number of bytes. Raises BadValueError.

    Less than 1 MiB is refused; activation and overhead may be 0.
    """
    size = parse_size(given, name) if isinstance(given, str) else Bytes(given)
    if size >= _LEAST or (size == 0 and name.removeprefix("--") in _NONE_IS_A_SIZE):
        return size
    number = "".join(c for c in str(given) if c in "0123456789.")
    raise BadValueError(
        f"{name}: {str(given).strip()[:40]!r} is {size} bytes, less than 1MiB",
        fix=f"did you mean {number}GiB?" if size else "leave it out, or write 24GiB or 80GB",
    )
