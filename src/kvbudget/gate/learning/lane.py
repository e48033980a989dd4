"""Decides whether one more prompt may join those that the engine has not computed yet.

An engine computes prompts in the order in which they come, many of them in one step that nobody interrupts, so whatever
is sent early stands in the way of everybody who comes next. A tenant that had clearly more prompt tokens computed
lately than its part, or a less urgent class beside a more urgent one, is sent one prompt at a time, when none is
waiting to be computed, or all together are at most QUANTUM_TOKENS; who that is decides `gate.tenants.shares`. All
others have one prompt there, or as many: more would only wait for one another, and a flood is not known as one when it
begins. The engine still always has work.
"""

# 7 ms of the assumed engine. At 512 tokens p99 TTFT of an interactive class beside bulk chat was 1.53 times what it is
# alone, at 128 1.24 (twelve seeds), with as much bulk served; for others under a flood it made no difference.
QUANTUM_TOKENS = 128
_START_NS_PER_TOKEN = 50_000.0
_WEIGHT = 0.05  # of the newest observation


class Lane:
    """Prompts at the engine that are not computed yet."""

    __slots__ = ("_ns_per_token", "_own", "_unseen", "_unseen_tokens", "_unwatched_until_ns")

    def __init__(self) -> None:
        # (whose, prompt tokens, of all before it and its own, since when)
        self._unseen: dict[str, tuple[str, int, int, int]] = {}
        self._own: dict[str, int] = {}  # by tenant
        self._unseen_tokens = 0
        self._ns_per_token = _START_NS_PER_TOKEN
        self._unwatched_until_ns = 0  # when those are thought to be computed whose first token nobody sees

    def joined(self, request_id: str, tenant: str, prompt_tokens: int, now_ns: int, *, watched: bool) -> None:
        """A prompt was sent. Not `watched`: its first token will not be seen."""
        if watched:
            self._unseen_tokens += prompt_tokens
            self._unseen[request_id] = (tenant, prompt_tokens, self._unseen_tokens, now_ns)
            self._own[tenant] = self._own.get(tenant, 0) + prompt_tokens
        else:
            begin_ns = max(now_ns, self._unwatched_until_ns)
            self._unwatched_until_ns = begin_ns + int(prompt_tokens * self._ns_per_token)

    def left(self, request_id: str, now_ns: int, *, computed: bool) -> None:
        """Its first token was seen, or it is gone; nothing happens if it left before."""
        unseen = self._unseen.pop(request_id, None)
        if unseen is None:
            return
        tenant, prompt_tokens, ahead_tokens, since_ns = unseen
        self._unseen_tokens -= prompt_tokens
        self._own[tenant] -= prompt_tokens
        if not self._own[tenant]:
            del self._own[tenant]
        if computed and ahead_tokens >= QUANTUM_TOKENS:  # of a few tokens the time is that of a step, not theirs
            self._ns_per_token += _WEIGHT * ((now_ns - since_ns) / ahead_tokens - self._ns_per_token)

    def clear_ns(self, now_ns: int) -> int | None:
        """When those whose first tokens nobody sees are thought to be computed; None if they are."""
        return self._unwatched_until_ns if self._unwatched_until_ns > now_ns else None

    def has_own_room(self, tenant: str, prompt_tokens: int) -> bool:
        """Whether its tenant has few enough prompts there; it would only wait for itself."""
        own = self._own.get(tenant, 0)
        return own == 0 or own + prompt_tokens <= QUANTUM_TOKENS

    def has_room(self, prompt_tokens: int, now_ns: int) -> bool:
        """Whether such a prompt would hardly stand in anybody's way."""
        unwatched_ns = max(0, self._unwatched_until_ns - now_ns)
        waiting = self._unseen_tokens + unwatched_ns / max(1.0, self._ns_per_token)
        return waiting <= 0 or waiting + prompt_tokens <= QUANTUM_TOKENS
