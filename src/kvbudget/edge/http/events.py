"""Decides how many server-sent events passed, from the raw body and however the reads cut it."""

from typing import Final

_DATA: Final = b"data:"
_NEW_LINE: Final = b"\n"
_MARK: Final = _NEW_LINE + _DATA
_CARRY_BYTES: Final = len(_MARK) - 1


class EventCounter:
    """Counts lines that begin with `data:`, which for LLM engines is one per event.

    Comments (`: ping`) and `event:` lines are not counted, so OpenAI and Anthropic streams count alike;
    `data: [DONE]` is counted. CRLF line ends count the same. An event counts when its `data:` line begins.
    """

    __slots__ = ("_carry", "total")

    def __init__(self) -> None:
        self._carry = _NEW_LINE  # the first line of the body begins a line too
        self.total = 0

    def feed(self, body: bytes) -> int:
        """Events that begin in `body`."""
        count = body.count(_MARK)
        if self._carry == _NEW_LINE:  # the usual read begins and ends with whole events
            count += body.startswith(_DATA)
            if not body.endswith(_NEW_LINE):
                self._carry = (_NEW_LINE + body)[-_CARRY_BYTES:]
        else:
            count += (self._carry + body[:_CARRY_BYTES]).count(_MARK)
            self._carry = _NEW_LINE if body.endswith(_NEW_LINE) else (self._carry + body)[-_CARRY_BYTES:]
        self.total += count
        return count
