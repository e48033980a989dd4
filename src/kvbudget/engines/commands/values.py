"""Decides what the value of a flag says, in the spelling of the engine that reads it."""

import json
import re
from collections.abc import Callable

from kvbudget.engines.commands.command import shown
from kvbudget.errors import BadValueError
from kvbudget.units import is_digits

Parser = Callable[[str, str], object]

# vLLM 0.32 utils/argparse_utils.py: human_readable_int: small letters are decimal, capitals binary.
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SUFFIXED = re.compile(r"([0-9]{1,18})(\.[0-9]{1,9})?([kKmMgGtT])", re.ASCII)
_BARE_NUMBER = re.compile(r"\b[0-9]+(?:\.[0-9]+)?[kKmMgGtT]\b", re.ASCII)
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*")')
_LARGEST = 10**15
_LARGEST_JSON = 100_000
_AUTO = -1
_YES = ("true", "1", "yes", "on", "enabled")
_NO = ("false", "0", "no", "off", "disabled")


def text(_flag: str, value: str) -> str:
    """The value as it stands."""
    return value


def whole(flag: str, value: str) -> int:
    """A whole number, 0 or more."""
    digits = value.strip().removeprefix("+").replace("_", "")
    if not is_digits(digits) or len(digits) > 18 or int(digits) > _LARGEST:
        raise BadValueError(f"{flag}: {shown(value)!r} is not a whole number", fix="correct it in the command")
    return int(digits)


def whole_numbers(flag: str, value: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    return tuple(whole(flag, part) for part in value.split(",")[:1024])


def positive(flag: str, value: str) -> int:
    """A whole number, 1 or more."""
    number = whole(flag, value)
    if number < 1:
        raise BadValueError(f"{flag}: {number} is less than 1", fix="correct it in the command")
    return number


def positive_or_default(flag: str, value: str) -> int | None:
    """A whole number; 0 and below are the engine's way to say "your own default"."""
    if value.strip().startswith("-"):
        whole(flag, value.strip()[1:])
        return None
    return whole(flag, value) or None


def fraction(flag: str, value: str) -> float:
    """A share above 0, up to 1."""
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 < number <= 1:
        raise BadValueError(f"{flag}: {shown(value)!r} is not a share between 0 and 1", fix="write for example 0.9")
    return number


def human(flag: str, value: str) -> int:
    """vLLM's whole numbers with a suffix: 8k is 8,000, 8K is 8,192, 25.6k is 25,600."""
    match = _SUFFIXED.fullmatch(value.strip())
    if match is None:
        return positive(flag, value)
    digits, decimals, suffix = match.groups()
    if suffix in _BINARY:
        if decimals:
            raise BadValueError(
                f"{flag}: {shown(value)!r}: vLLM takes no decimals before {suffix}",
                fix=f"write {digits}{decimals}{suffix.lower()} for powers of 1000",
            )
        number = int(digits) * _BINARY[suffix]
    else:
        places = (decimals or ".")[1:]
        number = int(digits + places) * _DECIMAL[suffix] // 10 ** len(places)
    if not 0 < number <= _LARGEST:
        raise BadValueError(f"{flag}: {shown(value)!r} is out of range", fix="correct it in the command")
    return number


def human_or_auto(flag: str, value: str) -> int:
    """As `human`; `auto` and -1 ask for the largest that fits."""
    return _AUTO if value.strip().lower() in ("auto", "-1") else human(flag, value)


def yes_or_no(flag: str, value: str) -> bool:
    """A boolean in any of its usual spellings."""
    word = value.strip().lower()
    if word not in _YES and word not in _NO:
        raise BadValueError(f"{flag}: {shown(value)!r} is neither true nor false", fix="correct it in the command")
    return word in _YES


def opposite(flag: str, value: str) -> bool:
    """A boolean of a flag that says what is off."""
    return not yes_or_no(flag, value)


def json_object(flag: str, value: str) -> dict[str, object]:
    """A JSON object in which bare numbers may carry a suffix (vLLM 0.32 engine/arg_utils.py)."""
    if len(value) > _LARGEST_JSON:
        raise BadValueError(f"{flag}: more than {_LARGEST_JSON} characters", fix="give the engine's own JSON object")
    parts = _QUOTED.split(value)
    for index in range(0, len(parts), 2):
        parts[index] = _BARE_NUMBER.sub(lambda match: str(human(flag, match.group())), parts[index])
    try:
        document = json.loads("".join(parts))
    except (ValueError, RecursionError) as error:
        raise BadValueError(f"{flag}: {shown(value)!r} is no JSON", fix="quote it in single quotes") from error
    if not isinstance(document, dict):
        raise BadValueError(f"{flag}: {shown(value)!r} is no JSON object", fix='write {"key": value}')
    return document


def json_value(value: str) -> object:
    """What one dotted key is set to: JSON, a number with a suffix, or the text itself."""
    if len(value) > _LARGEST_JSON:
        return value
    try:
        parsed: object = json.loads(value)
    except (ValueError, RecursionError):
        match = _SUFFIXED.fullmatch(value)
        parsed = value if match is None or (match[2] and match[3] in _BINARY) else human("", value)
    return parsed
