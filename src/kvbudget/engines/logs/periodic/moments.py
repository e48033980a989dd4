"""Decides when a line of a log was written, in seconds of a clock whose zero means nothing."""

import re

# 2024-12-09T13:31:59.800Z, 2025-01-24 21:14:50.213, 2025/05/27 20:14:38; vLLM: INFO 03-19 07:08:57
_DATED = re.compile(r"(?<![0-9])(?:(\d{4})[-/])?(\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
# llama.cpp since 2025: minutes.seconds.milliseconds.microseconds since its start
_SINCE_START = re.compile(r"^(\d{1,7})\.(\d\d)\.(\d{3})\.(\d{3}) [A-Z] ")
_DAY_S = 86_400.0
_NO_YEAR = 2024  # a leap year, so that 29 February is a day of it
_YEAR_S = 366 * _DAY_S


def moment_s(text: str) -> float | None:
    """The last date and time that is told before the message; None where there is none."""
    if match := _SINCE_START.match(text):
        minutes, seconds, milli, micro = (int(part) for part in match.groups())
        return minutes * 60.0 + seconds + milli / 1e3 + micro / 1e6
    # A collector puts its own time before that of the engine, which is the exact one.
    found = list(_DATED.finditer(text[:200]))
    for match in reversed(found):
        year, month, day, hour, minute, second = (int(part) if part else _NO_YEAR for part in match.groups()[:6])
        if 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60:
            fraction = float(f"0.{match[7]}") if match[7] else 0.0
            return _days(year, month, day) * _DAY_S + hour * 3600.0 + minute * 60.0 + second + fraction
    return None


def in_order(moments: list[float | None]) -> list[float | None]:
    """The same without the jump back at new year, where a log tells no year."""
    ordered: list[float | None] = []
    added, last = 0.0, None
    for moment in moments:
        if moment is not None and last is not None and moment + added < last - _YEAR_S / 2:
            added += _YEAR_S
        last = last if moment is None else moment + added
        ordered.append(None if moment is None else moment + added)
    return ordered


def _days(year: int, month: int, day: int) -> int:
    """Days of the Gregorian calendar, March first: leap days come last."""
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year
