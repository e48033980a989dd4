"""When room is expected: what Retry-After tells, from what runs and what waits."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from kvbudget.pool.footprint import Footprint
from kvbudget.pool.ledger import Reservation

# Clients of the OpenAI SDKs ignore more than 120 s and do not retry at all (openai-python `_base_client.py`); the edge
# lengthens what is told by up to a quarter, so that refused clients do not come back all at once.
MAX_WAIT_NS: Final = 96 * 10**9
_START_NS_PER_TOKEN: Final = 20_000_000  # until a token was seen: an ordinary decode step of a large model
_START_SHARE: Final = 1.0  # until then, everybody is expected to use all of its max_new_tokens
_WEIGHT: Final = 0.1  # of the newest observation


@dataclass(slots=True)
class Expectation:
    """Learned from requests that ended: time per token, and the share of max_new_tokens really used."""

    ns_per_token: float = _START_NS_PER_TOKEN
    used_share: float = _START_SHARE
    learned: bool = False

    def learn(self, ended: Reservation, output_tokens: int, now_ns: int) -> None:
        """Take in a request that the engine finished with `output_tokens` per sequence."""
        if output_tokens < 1:
            return
        ns_per_token = (now_ns - ended.made_ns) / output_tokens
        share = min(1.0, output_tokens / max(1, ended.footprint.max_new_tokens))
        weight = _WEIGHT if self.learned else 1.0
        self.learned = True
        self.ns_per_token += weight * (ns_per_token - self.ns_per_token)
        self.used_share += weight * (share - self.used_share)

    def wait_ns(
        self,
        living: Iterable[Reservation],
        *,
        missing_blocks: int,
        missing_sequences: int,
        now_ns: int,
        whole: bool = False,
    ) -> int:
        """Time until so many blocks and sequences have come back, at most MAX_WAIT_NS. `whole`: what several share
        counts for each of them.

        While the running ones suffice, that is when the last of those that are needed is expected to end. Beyond them,
        whoever waits in between has to come and go as well: the pool then turns over once per mean lifetime.
        """
        return next(self.waits_ns(living, [(missing_blocks, missing_sequences)], now_ns, whole=whole))

    def waits_ns(
        self,
        living: Iterable[Reservation],
        missing: Iterable[tuple[int, int]],
        now_ns: int,
        *,
        whole: bool = False,
    ) -> Iterator[int]:
        """The same for several, of whom each misses no less than the one before: (blocks, sequences)."""
        running: list[Reservation] | None = None
        ends: Iterator[tuple[int, Reservation]] = iter(())
        freed_blocks = freed_sequences = left_ns = 0
        for blocks, sequences in missing:
            if blocks <= 0 and sequences <= 0:
                yield 0
                continue
            if running is None:
                running = list(living)
                ends = iter(self._in_order_of_their_ends(running, now_ns))
            while freed_blocks < blocks or freed_sequences < sequences:
                ending = next(ends, None)
                if ending is None:
                    break
                left_ns = ending[0]
                freed_blocks += _blocks_of(ending[1], whole=whole)
                freed_sequences += ending[1].footprint.total_sequences
            else:
                yield min(left_ns, MAX_WAIT_NS)
                continue
            if not running:
                yield MAX_WAIT_NS
                continue
            held = sum([_blocks_of(one, whole=whole) for one in running])
            yield self._turnover_ns(running, blocks / held, sequences, left_ns)

    def _in_order_of_their_ends(self, running: list[Reservation], now_ns: int) -> list[tuple[int, Reservation]]:
        if not self.learned:
            self._guess_from(running, now_ns)
        return sorted(((self.remaining_ns(one, now_ns), one) for one in running), key=lambda pair: pair[0])

    def _turnover_ns(self, running: list[Reservation], turns: float, sequences: int, last_ns: int) -> int:
        """All that run are not enough: their blocks are missing `turns` times. `last_ns`: when the last one ends."""
        turns = max(turns, sequences / sum(one.footprint.total_sequences for one in running))
        mean_tokens = sum(one.footprint.max_new_tokens for one in running) / len(running)
        return min(max(last_ns, int(turns * mean_tokens * self.used_share * self.ns_per_token)), MAX_WAIT_NS)

    def _guess_from(self, living: list[Reservation], now_ns: int) -> None:
        """Before anybody ended: the pace of those that stream, the slowest of them to be cautious."""
        paces = [
            (now_ns - one.first_seen_ns) / (one.seen_tokens - 1)  # the time to the first is not decoding
            for one in living
            if one.paced and one.first_seen_ns is not None and one.seen_tokens > 1
        ]
        if paces:
            self.ns_per_token = max(paces)

    def life_ns(self, footprint: Footprint) -> int:
        """How long a request lives that is let in now, at most MAX_WAIT_NS."""
        return min(int(self.used_share * footprint.max_new_tokens * self.ns_per_token), MAX_WAIT_NS)

    def remaining_ns(self, living: Reservation, now_ns: int) -> int:
        """How much longer this reservation is expected to live; at least one token's time."""
        tokens = self.used_share * living.footprint.max_new_tokens
        if living.paced and living.first_seen_ns is not None:
            left = (tokens - living.seen_tokens) * self.ns_per_token
        else:
            left = tokens * self.ns_per_token - (now_ns - living.made_ns)
        return int(max(left, self.ns_per_token))


def _blocks_of(living: Reservation, *, whole: bool) -> int:
    return living.peak_blocks if whole else living.net_blocks
