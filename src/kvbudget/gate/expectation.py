"""When room is expected: what Retry-After tells, from what runs and what waits."""

from collections.abc import Iterable
from dataclasses import dataclass

from kvbudget.pool.ledger import Reservation

# Clients of the OpenAI SDKs ignore more than 120 s and do not retry at all (openai-python `_base_client.py`); the edge
# lengthens what is told by up to a quarter, so that refused clients do not come back all at once.
MAX_WAIT_NS = 96 * 10**9
_START_NS_PER_TOKEN = 20_000_000  # until a token was seen: an ordinary decode step of a large model
_START_SHARE = 1.0  # until then, everybody is expected to use all of its max_new_tokens
_WEIGHT = 0.1  # of the newest observation


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
    ) -> int:
        """Time until so many blocks and sequences have come back, at most MAX_WAIT_NS.

        While the running ones suffice, that is when the last of those that are needed is expected to end. Beyond them,
        whoever waits in between has to come and go as well: the pool then turns over once per mean lifetime.
        """
        if missing_blocks <= 0 and missing_sequences <= 0:
            return 0
        running = list(living)
        if not running:
            return MAX_WAIT_NS
        if not self.learned:
            self._guess_from(running, now_ns)
        blocks, sequences = missing_blocks, missing_sequences
        ends = sorted(((self.remaining_ns(one, now_ns), one) for one in running), key=lambda pair: pair[0])
        for left_ns, ending in ends:
            blocks -= ending.net_blocks
            sequences -= ending.footprint.total_sequences
            if blocks <= 0 and sequences <= 0:
                return min(left_ns, MAX_WAIT_NS)
        turns = max(
            missing_blocks / sum(one.net_blocks for one in running),
            missing_sequences / sum(one.footprint.total_sequences for one in running),
        )
        mean_tokens = sum(one.footprint.max_new_tokens for one in running) / len(running)
        return min(max(ends[-1][0], int(turns * mean_tokens * self.used_share * self.ns_per_token)), MAX_WAIT_NS)

    def _guess_from(self, living: list[Reservation], now_ns: int) -> None:
        """Before anybody ended: the pace of those that stream, the slowest of them to be cautious."""
        paces = [
            (now_ns - one.first_seen_ns) / (one.seen_tokens - 1)  # the time to the first is not decoding
            for one in living
            if one.paced and one.first_seen_ns is not None and one.seen_tokens > 1
        ]
        if paces:
            self.ns_per_token = max(paces)

    def remaining_ns(self, living: Reservation, now_ns: int) -> int:
        """How much longer this reservation is expected to live; at least one token's time."""
        tokens = self.used_share * living.footprint.max_new_tokens
        if living.paced and living.first_seen_ns is not None:
            left = (tokens - living.seen_tokens) * self.ns_per_token
        else:
            left = tokens * self.ns_per_token - (now_ns - living.made_ns)
        return int(max(left, self.ns_per_token))
