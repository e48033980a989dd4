"""Decides when the reader of a request is woken, and keeps what is open of it: one sequence per choice."""

import asyncio

from kvbudget.simulate.paged_engine import FinishReason

Event = tuple[int, FinishReason | None]  # (choice, why it ended with this token or None)


class Sequence:
    """One choice of a request inside the engine, with the times that its metrics need."""

    __slots__ = (
        "arrived_at",
        "choice",
        "first_token_at",
        "id",
        "last_token_at",
        "prompt_tokens",
        "reply",
        "scheduled_at",
        "tokens",
    )

    def __init__(self, sequence_id: str, choice: int, reply: "Reply", prompt_tokens: int, now: float) -> None:
        self.id = sequence_id
        self.choice = choice
        self.reply = reply
        self.prompt_tokens = prompt_tokens
        self.tokens = 0
        self.arrived_at = now
        self.scheduled_at = self.first_token_at = self.last_token_at = 0.0


class Reply:
    """What one HTTP request waits for: tokens of all its choices, in the order in which they come."""

    __slots__ = ("_events", "_every_token", "_waiter", "closed", "open_sequences")

    def __init__(self, every_token: bool) -> None:
        """`every_token`: wake the reader for each token (a stream), not only when all choices are complete."""
        self._events: list[Event] = []
        self._every_token = every_token
        self._waiter: asyncio.Future[None] | None = None
        self.closed = False
        self.open_sequences: dict[str, Sequence] = {}

    async def events(self) -> list[Event]:
        """Tokens since the last call, at least one; empty once the request was aborted."""
        while not self.closed and not (self._events and (self._every_token or not self.open_sequences)):
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        events, self._events = self._events, []
        return [] if self.closed else events

    def push(self, event: Event) -> None:
        """One token more."""
        self._events.append(event)
        if self._every_token or not self.open_sequences:
            self.wake()

    def wake(self) -> None:
        """Let the reader look."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
