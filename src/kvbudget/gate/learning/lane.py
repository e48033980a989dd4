"""Decides whether one more prompt may join those that the engine has not read yet, and how long it reads them.

An engine reads prompts in the order in which they come, many of them in one step that nobody interrupts: whatever is
sent early stands in the way of everybody who comes next, and makes everybody wait for its next token who is answered
already. So no more is sent than is read in a short while (`gate.waiting.parking`); the engine still always has work.

A tenant that had clearly more prompt tokens read lately than its part, or a less urgent class beside a more urgent one,
is sent one prompt at a time, when none is waiting to be read, or a few short ones; who that is, and how few, decides
`gate.tenants.shares`. All others have one prompt there, or as many: more would only wait for one another, and a
flood is not known as one when it begins.
"""

from typing import Final

from kvbudget.gate.learning.pace import Pace

START_NS_PER_TOKEN: Final = 50_000.0
MOST_NS_PER_TOKEN: Final = 1e9  # slower than any engine reads: a pace that was saved may be one of nobody's
_FEW_TOKENS: Final = 128  # are read in no more time than a step takes
_START_TOKENS: Final = 2048.0  # of what is learned, so many are made up at first
_MEMORY: Final = 64.0  # first tokens
_MOST_SLOWER: Final = 8.0  # than was thought: whatever takes longer is a stall, and no pace


class _Unread:
    """A prompt whose first token will be seen. `begins`: none was unread when it came."""

    __slots__ = ("account", "begins", "tokens")

    def __init__(self, account: str, tokens: int, begins: bool) -> None:
        self.account: Final = account
        self.tokens: Final = tokens
        self.begins: Final = begins


class Lane:
    """Prompts at the engine that are not read yet.

    How fast they are read is told by what is read between one first token and the next, as long as there is always
    something to read; of the first one the step is left out into which it came.
    """

    __slots__ = (
        "_ns", "_own", "_pace", "_since_ns", "_tokens", "_unread", "_unread_tokens", "_unwatched",
        "_unwatched_until_ns", "is_known", "ns_per_token",
    )  # fmt: skip

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._unread: dict[str, _Unread] = {}
        self._unread_tokens = 0
        self._own: dict[str, int] = {}  # by account
        self._since_ns = 0  # what is unread is being read
        # Whose first token nobody sees: (when each is thought to be read, how long that takes), and when all are.
        self._unwatched: dict[str, tuple[int, int]] = {}
        self._unwatched_until_ns = 0
        self.is_known = False  # whether the pace is more than a guess
        self.ns_per_token = START_NS_PER_TOKEN
        self.resume(START_NS_PER_TOKEN)

    def resume(self, ns_per_token: float) -> None:
        """Go on from a pace that was learned before."""
        self.is_known = ns_per_token != START_NS_PER_TOKEN
        self.ns_per_token = min(MOST_NS_PER_TOKEN, ns_per_token)
        self._tokens = _START_TOKENS
        self._ns = _START_TOKENS * self.ns_per_token

    def joined(self, request_id: str, account: str, prompt_tokens: int, now_ns: int, *, watched: bool) -> None:
        """A prompt was sent. Not `watched`: its first token will not be seen. By a mere guess nobody waits for that."""
        if watched:
            begins = not self._unread
            if begins:
                self._since_ns = now_ns
            self._unread[request_id] = _Unread(account, prompt_tokens, begins)
            self._unread_tokens += prompt_tokens
            self._own[account] = self._own.get(account, 0) + prompt_tokens
        else:
            takes_ns = self.takes_ns(prompt_tokens)
            self._unwatched_until_ns = max(now_ns, self._unwatched_until_ns) + takes_ns
            self._unwatched[request_id] = self._unwatched_until_ns, takes_ns

    def read(self, request_id: str, now_ns: int) -> None:
        """Its first token was seen."""
        all_ns = self.takes_ns(self._unread_tokens)  # as many of them may have been read in one step
        unread = self._take_off(request_id)
        if unread is None:
            return
        took_ns, self._since_ns = float(now_ns - self._since_ns), now_ns
        if unread.begins:
            if unread.tokens < _FEW_TOKENS:
                return
            took_ns = max(0.0, took_ns - self._pace.ns_per_step)
        took_ns = min(took_ns, _MOST_SLOWER * all_ns + self._pace.ns_per_step)
        self.is_known = True
        self._ns += took_ns - self._ns / _MEMORY
        self._tokens += unread.tokens - self._tokens / _MEMORY
        self.ns_per_token = min(MOST_NS_PER_TOKEN, self._ns / max(1.0, self._tokens))

    def left(self, request_id: str, now_ns: int) -> None:
        """It is gone, and so read or dropped."""
        self._take_off(request_id)
        read_ns, takes_ns = self._unwatched.pop(request_id, (0, 0))
        if read_ns > now_ns:  # what came after it is that much sooner
            self._unwatched_until_ns -= min(takes_ns, max(0, self._unwatched_until_ns - now_ns))

    def lost(self, request_id: str, now_ns: int) -> None:
        """Its first token will not be seen after all."""
        unread = self._take_off(request_id)
        if unread is not None:
            self.joined(request_id, unread.account, unread.tokens, now_ns, watched=False)

    def takes_ns(self, prompt_tokens: int) -> int:
        """How long so many prompt tokens are thought to be read."""
        return int(prompt_tokens * self.ns_per_token)

    def backlog_ns(self, now_ns: int) -> int:
        """How long those are thought to be read that are not read."""
        unwatched_ns = max(0, self._unwatched_until_ns - now_ns) if self.is_known else 0
        return self.takes_ns(self._unread_tokens) + unwatched_ns

    def clear_ns(self, now_ns: int) -> int | None:
        """When those whose first tokens nobody sees are thought to be read; None if they are."""
        return self._unwatched_until_ns if self._unwatched_until_ns > now_ns else None

    def has_own_room(self, account: str, prompt_tokens: int, most_tokens: int) -> bool:
        """Whether its tenant has nothing there, or would have at most so many tokens; it would only wait for itself."""
        own = self._own.get(account, 0)
        return own == 0 or own + prompt_tokens <= most_tokens

    def has_room(self, prompt_tokens: int, most_tokens: int, now_ns: int) -> bool:
        """Whether nothing is there, or at most so many tokens would be."""
        unwatched_ns = max(0, self._unwatched_until_ns - now_ns)
        waiting = self._unread_tokens + unwatched_ns / max(1.0, self.ns_per_token)
        return waiting <= 0 or waiting + prompt_tokens <= most_tokens

    def _take_off(self, request_id: str) -> _Unread | None:
        unread = self._unread.pop(request_id, None)
        if unread is not None:
            self._unread_tokens -= unread.tokens
            self._own[unread.account] -= unread.tokens
            if not self._own[unread.account]:
                del self._own[unread.account]
        return unread
