"""Decides what the lines of a log say without colours, JSON envelopes and redraws, and which rank wrote them."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence

from kvbudget.engines.logs.receipt import Line
from kvbudget.errors import BadValueError

_LONGEST = 65_536  # characters; vLLM's configuration line has some 8,000
MAX_LINES = 1_500_000
MAX_TELLING_LINES, MAX_TELLING_CHARS = 50_000, 16 * 1024**2
MAX_STARTS = 200  # a pod that crashes and is started again, for hours
_MOST_OF_A_SIGN = 200
_SHORTEST_LINE = 8  # that could tell a figure
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_MESSAGE_KEYS = ("message", "msg", "log", "text", "event", "body", "MESSAGE", "textPayload")
_ENVELOPES = 3  # a JSON line of an engine inside one of a container runtime inside one of a collector
# vLLM: (Worker_TP0 pid=1), (VllmWorker TP0 pid=1), (VllmWorkerProcess pid=1), (RayWorkerWrapper pid=1, ip=10.0.0.1),
# (EngineCore_DP0 pid=1); SGLang: [2025-03-08 12:29:21 TP1] and [... DP0 PP1 TP0]; TensorRT-LLM: [RANK 0].
_RANK = re.compile(
    r"\(((?:Vllm|RayWorker|Worker|Engine)\w{0,40}[^()]{0,80}?pid=[^()]{0,60})\)"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d((?: (?:DP|PP|TP|EP|ATTN_TP)\d+)+)\]"
    r"|\[(?:RANK|Rank|rank) ?(\d+)\]"
)


def lines_of(
    text: str, hints: Iterable[str] = ("",), signs: Iterable[str] = (), starts: Sequence[str] = ()
) -> list[Line]:
    """The lines that hold one of `hints`, in order; numbers count the raw lines from 1.

    Of those that hold one of `signs` alone there are only some: they tell whose log it is. A line with one of `starts`
    begins a new start of an engine, and only the last of very many are kept. Raises BadValueError for a text with more
    lines than can be read in some seconds.
    """
    found: list[Line] = []
    for number, raw in _last_starts(_telling(text, _shortest(hints), dict.fromkeys(signs, _MOST_OF_A_SIGN)), starts):
        for part in unwrapped(raw).replace("\r", "\n").split("\n"):
            plain = _COLOUR.sub("", part) if "\x1b" in part else part
            if plain and not plain.isspace():
                found.append(Line(number, plain.strip(), rank_of(plain)))
    return found


def _telling(text: str, hints: Sequence[str], signs: dict[str, int]) -> list[tuple[int, str]]:
    """(number, text) of the lines to be read. An engine that serves writes a hundred others for each of them."""
    if text.count("\n") > MAX_LINES:
        raise BadValueError(
            f"this log has more than {MAX_LINES} lines", fix="give the part from where the engine was started"
        )
    every = hints[0] == ""
    found = []
    for number, raw in enumerate(text.split("\n"), 1):
        if len(raw) < _SHORTEST_LINE and not every:
            continue
        if "\x1b" in raw:
            raw = _COLOUR.sub("", raw)  # noqa: PLW2901 - the same line
        for hint in hints:
            if hint in raw:
                break
        else:
            sign = next((sign for sign in signs if sign in raw), "")
            if not sign:
                continue
            signs[sign] -= 1
            if not signs[sign]:
                del signs[sign]
        found.append((number, raw[:_LONGEST]))
    return found


def plain_lines(text: str, hints: Sequence[str], raw_hint: str) -> Iterator[Line]:
    """The lines that hold one of `hints`, without colours and envelopes, however many they are; those that hold
    `raw_hint` as they stand, for they may be nearly all."""
    for number, raw in enumerate(text.split("\n"), 1):
        if raw_hint in raw:
            yield Line(number, raw[:_LONGEST], "")
            continue
        for hint in hints:
            if hint in raw:
                break
        else:
            continue
        for part in unwrapped(raw[:_LONGEST]).replace("\r", "\n").split("\n"):
            plain = _COLOUR.sub("", part) if "\x1b" in part else part
            yield Line(number, plain.strip(), rank_of(plain))


def _last_starts(lines: list[tuple[int, str]], starts: Sequence[str]) -> list[tuple[int, str]]:
    if len(lines) > MAX_STARTS:
        begun = [at for at, (_, raw) in enumerate(lines) if any(start in raw for start in starts)]
        if len(begun) > MAX_STARTS:
            lines = lines[begun[-MAX_STARTS] :]
    if len(lines) > MAX_TELLING_LINES or sum(len(raw) for _, raw in lines) > MAX_TELLING_CHARS:
        raise BadValueError(
            f"more than {MAX_TELLING_LINES} lines of this log tell of memory or settings",
            fix="give the part from where the engine was started up to where it is ready",
        )
    return lines


def _shortest(hints: Iterable[str]) -> list[str]:
    """Those that hold no other: where that is not found, neither are they."""
    every = sorted(set(hints), key=len)
    return [hint for at, hint in enumerate(every) if not any(other in hint for other in every[:at])]


def unwrapped(raw: str) -> str:
    """The message of a JSON line; the line itself where it is none."""
    text = raw
    for _ in range(_ENVELOPES):
        if not text.lstrip().startswith("{"):
            break
        try:
            document: object = json.loads(text)
        except (ValueError, RecursionError):
            break  # truncated, or no JSON at all: it is searched as it stands
        message = _message(document)
        if message is None:
            break
        text = message
    return text


def _message(document: object) -> str | None:
    if not isinstance(document, dict):
        return None
    for key in _MESSAGE_KEYS:
        if isinstance(found := document.get(key), str):
            return found
    return _message(document.get("fields"))  # TGI: {"fields": {"message": ...}}


def rank_of(text: str) -> str:
    """Which rank wrote it, in its own words; "" where it does not say."""
    match = _RANK.search(text)
    return "" if match is None else (match[1] or match[2] or match[3]).strip()
