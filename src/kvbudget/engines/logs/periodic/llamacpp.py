"""Reads what llama-server writes of its slots: who begins, who ends, and when the cache had no room.

Wordings of 2024 to 2026 (`tools/server`): `slot launch_slot_: id 0 | task 5 | processing task`, `slot release: id 0 |
task 5 | stop processing: n_past = 742`, `failed to find free space in the KV cache`.
"""

import re

from kvbudget.engines.logs.periodic.moments import moment_s
from kvbudget.engines.logs.periodic.tally import Entry, Tally
from kvbudget.engines.logs.receipt import Line
from kvbudget.engines.window import Gauges

HINTS = (
    "launch_slot", "stop processing", "failed to find free space", "Context size has been exceeded", "print_timing",
    "eval time =", "KV cache is full", "failed to find a memory slot", "done request", "log_server_r", "n_ctx_slot",
)  # fmt: skip
_SLOT = re.compile(r"\bid {1,4}([0-9]{1,4}) \| task (-?[0-9]{1,9}) \|")
_HELD = re.compile(r"\b(?:n_past|n_tokens) = {1,9}([0-9]{1,9})")
_PROMPT = re.compile(r"prompt eval time = .{0,40}/ {1,9}([0-9]{1,9}) tokens")
_OUTPUT = re.compile(r"(?<!prompt )\beval time = .{0,40}/ {1,9}([0-9]{1,9}) (?:tokens|runs)")
_STATUS = re.compile(r"request: POST \S{1,200} \S{1,100} ([0-9]{3})")
_CONTEXT = re.compile(r"\bn_ctx_slot = {1,9}([0-9]{1,9})")
_NO_ROOM = ("failed to find free space", "failed to find a memory slot", "KV cache is full")


class Reader:
    """Which slots are at work, and what has happened. `held`: tokens of each slot when it last said so."""

    engine = "llamacpp"
    usual_s = 1.0

    def __init__(self) -> None:
        self.tallies: dict[str, Tally] = {}
        self.rates: dict[str, float] = {}
        self.context: int | None = None
        self._busy: set[str] = set()
        self._begun = False

    def read(self, line: Line) -> None:
        """Take one line; each begin and end of a request is a look, and each time that there was no room."""
        text = line.text
        tally = self.tallies.setdefault("", Tally())
        if any(mark in text for mark in _NO_ROOM):
            running = len(self._busy) if self._begun else None
            tally.add(Entry(Gauges(at_s=moment_s(text), running=running), counts={"no_room": 1.0}))
        elif "Context size has been exceeded" in text:
            tally.note("context_exceeded")
        elif match := _STATUS.search(text):
            tally.note(f"http_{match[1]}")
        elif match := _PROMPT.search(text):
            tally.note("prompt_tokens", float(match[1]))
        elif match := _OUTPUT.search(text):
            tally.note("generation_tokens", float(match[1]))
        elif match := _CONTEXT.search(text):
            self.context = int(match[1])
        elif slot := _SLOT.search(text):
            self._slot(slot[1], text, tally)

    def answered(self, status: str) -> None:
        """llama.cpp has no access log of this form: such a line is another's."""

    def _slot(self, slot: str, text: str, tally: Tally) -> None:
        if "processing task" in text:
            self._busy.add(slot)
            self._begun = True
        elif "stop processing" in text:
            self._busy.discard(slot)
            held = _HELD.search(text)
            if held:
                self.rates["longest_tokens"] = max(self.rates.get("longest_tokens", 0.0), float(held[1]))
            tally.note("finished")
        else:
            return
        tally.add(Entry(Gauges(at_s=moment_s(text), running=len(self._busy))))
