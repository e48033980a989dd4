"""Decides who has signed in at the admin port in a browser, for how long, and how often somebody may try.

A session is a secret of 256 bits that the browser keeps in a cookie; here only its hash is kept, in memory, so that a
restart, or another token, ends all of them.
"""

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable

LONGEST_NS = 12 * 3600 * 10**9  # a working day; then the token is typed again
MOST_SESSIONS = 64  # beyond that, the oldest is over
PEER_TRIES, PEER_AGAIN_NS = 5, 10 * 10**9  # wrong tokens of one address at once, and one more each ten seconds
ALL_TRIES, ALL_AGAIN_NS = 30, 2 * 10**9  # the same of all addresses together
_MOST_PEERS = 1024


class Sessions:
    """Those who have signed in."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._until_ns: OrderedDict[bytes, int] = OrderedDict()  # by hash, the oldest first
        self._watching: dict[bytes, list[Callable[[], None]]] = {}

    def begin(self) -> str:
        """A new one: what the browser has to show from now on."""
        secret = secrets.token_urlsafe(32)
        self._until_ns[hashed(secret)] = self._now_ns() + LONGEST_NS
        if len(self._until_ns) > MOST_SESSIONS:
            self._end(next(iter(self._until_ns)))
        return secret

    def holds(self, secret: str) -> bool:
        """Whether it was begun and is not over. Found by its hash, so that time tells nothing of the secret."""
        until_ns = self._until_ns.get(hashed(secret))
        if until_ns is not None and until_ns <= self._now_ns():
            self.end(secret)
            until_ns = None
        return until_ns is not None

    def end(self, secret: str) -> None:
        """It is over; nothing happens if it was."""
        self._end(hashed(secret))

    def left_ns(self, secret: str) -> int:
        """For how long it holds still; 0 where it does not."""
        until_ns = self._until_ns.get(hashed(secret))
        return 0 if until_ns is None else max(0, until_ns - self._now_ns())

    def watch(self, secret: str, ended: Callable[[], None]) -> None:
        """Hear when it is over by whatever but its time; at once, if it is. `unwatch` follows."""
        key = hashed(secret)
        if key in self._until_ns:
            self._watching.setdefault(key, []).append(ended)
        else:
            ended()

    def unwatch(self, secret: str, ended: Callable[[], None]) -> None:
        """Hear of it no more; nothing happens if nobody did."""
        key = hashed(secret)
        watching = self._watching.get(key, [])
        if ended in watching:
            watching.remove(ended)
        if not watching:
            self._watching.pop(key, None)

    def _end(self, key: bytes) -> None:
        self._until_ns.pop(key, None)
        for ended in self._watching.pop(key, ()):
            ended()


class Tries:
    """Wrong tokens: a bucket for each address and one for all, so that guessing is slow and costs us nothing."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._all = _Bucket(ALL_TRIES, ALL_AGAIN_NS)
        self._peers: OrderedDict[str, _Bucket] = OrderedDict()

    def wait_ns(self, peer: str) -> int:
        """Time until this address may try; 0: now."""
        now_ns = self._now_ns()
        own = self._peers.get(peer)
        return max(self._all.wait_ns(now_ns), 0 if own is None else own.wait_ns(now_ns))

    def was_wrong(self, peer: str) -> None:
        """It tried a token that is none."""
        now_ns = self._now_ns()
        bucket = self._peers.setdefault(peer, _Bucket(PEER_TRIES, PEER_AGAIN_NS))
        self._peers.move_to_end(peer)
        if len(self._peers) > _MOST_PEERS:
            self._peers.popitem(last=False)
        bucket.take(now_ns)
        self._all.take(now_ns)

    def was_right(self, peer: str) -> None:
        """What was counted as wrong was the token."""
        for bucket in (self._all, self._peers.get(peer)):
            if bucket is not None:
                bucket.give()


class _Bucket:
    """So many at once, and one more every `again_ns`."""

    __slots__ = ("_again_ns", "_free_ns", "_most")

    def __init__(self, most: int, again_ns: int) -> None:
        self._most = most
        self._again_ns = again_ns
        self._free_ns: int | None = None  # when all of them will be there again

    def wait_ns(self, now_ns: int) -> int:
        if self._free_ns is None:
            return 0
        return max(0, self._free_ns - now_ns - (self._most - 1) * self._again_ns)

    def take(self, now_ns: int) -> None:
        free_ns = now_ns if self._free_ns is None else max(now_ns, self._free_ns)
        self._free_ns = free_ns + self._again_ns

    def give(self) -> None:
        if self._free_ns is not None:
            self._free_ns -= self._again_ns


def hashed(secret: str) -> bytes:
    """What a secret is kept as."""
    return hashlib.sha256(secret.encode(errors="replace")).digest()
