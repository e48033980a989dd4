"""Decides what the lines of a log say without colours, JSON envelopes and redraws, and which rank wrote them."""

import json
import re
from collections.abc import Iterator

from kvbudget.engines.logs.receipt import Line

_LONGEST = 65_536  # characters; vLLM's configuration line has some 8,000
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


def lines_of(text: str) -> Iterator[Line]:
    """The lines that say something, in order; numbers count the raw lines from 1."""
    for number, raw in enumerate(text.split("\n"), 1):
        for part in _unwrapped(raw[:_LONGEST]).replace("\r", "\n").split("\n"):
            plain = _COLOUR.sub("", part) if "\x1b" in part else part
            if plain and not plain.isspace():
                yield Line(number, plain.strip(), _rank(plain))


def _unwrapped(raw: str) -> str:
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


def _rank(text: str) -> str:
    match = _RANK.search(text)
    return "" if match is None else (match[1] or match[2] or match[3]).strip()
