"""Decides what an engine's own figures mean beside what we promised: traffic of others, a stuck scheduler, a restart.

`held` is the engine's word, `promised` is ours, `elsewhere` what is held by what did not come through us. They are
three numbers and stay three: none overwrites another, and admission goes by the most of them. Gauges are late, stale or
cold at times (vLLM's read 0 for a while after its start), so nothing is concluded from one look.
"""

from dataclasses import dataclass

from kvbudget.gate.config import PROGRESS_STRIDE
from kvbudget.gate.gate import Gate
from kvbudget.pool.footprint import Footprint
from kvbudget.units import Tokens

LOOKS_AGREE = 3  # that must tell of others' blocks before they count
LOOKS_STUCK = 5  # in a row without progress; at one every 2 s, that is 10 s
_TOLERANCE = 0.02  # of the pool: block tables and lookahead that no rule of ours counts


@dataclass(frozen=True, slots=True)
class Look:
    """What one look at an engine told; None: it does not tell. `progress`: a counter of tokens that it has computed.
    `started`: when its process began, in whatever clock. `by_peak`: `held` are its own reservations, not what is in
    use."""

    held_blocks: int | None = None
    running: int | None = None
    waiting: int | None = None
    deferred: int | None = None
    progress: float | None = None
    started: float | None = None
    by_peak: bool = False


class Elsewhere:
    """What of an engine's pool is held by others, seen over some looks."""

    __slots__ = ("_ours", "_seen")

    def __init__(self) -> None:
        self._seen: list[int] = []
        self._ours = (0, 0)  # (blocks, sequences) at the last look: what has ended since may still be in the gauges

    def looked(self, look: Look, gate: Gate) -> int:
        """Blocks, as far as all the last looks agree."""
        promises = gate.promises
        now = (
            most_held(gate, by_peak=look.by_peak) + promises.elsewhere_blocks,
            gate.ledger.sequences + promises.elsewhere_sequences,
        )
        ours, self._ours = (max(now[0], self._ours[0]), max(now[1], self._ours[1])), now
        self._seen = [*self._seen[1 - LOOKS_AGREE :], self._beyond(look, ours, gate)]
        return min(self._seen) if len(self._seen) >= LOOKS_AGREE else 0

    def forget(self) -> None:
        """It is another engine."""
        self._seen.clear()

    def _beyond(self, look: Look, ours: tuple[int, int], gate: Gate) -> int:
        if look.held_blocks is None or not look.running:
            return 0  # nothing runs: whatever the gauge says is of before
        others_run = look.running + (look.waiting or 0) > ours[1]
        # With nobody else there, only what is beyond all that ours could ever hold is not theirs.
        most = gate.ledger.peak_sum_blocks + gate.promises.elsewhere_blocks
        expected = ours[0] if others_run else max(ours[0], most)
        beyond = look.held_blocks - expected - int(_TOLERANCE * gate.ledger.usable_blocks)
        return max(0, beyond)


def most_held(gate: Gate, *, by_peak: bool) -> int:
    """Blocks that our requests can hold by now at most: prompts, tokens seen, and those under way."""
    ledger = gate.ledger
    if by_peak:
        return ledger.peak_sum_blocks
    lag = PROGRESS_STRIDE + gate.config.lag_steps
    held = 0
    for living in ledger:
        footprint = living.footprint
        new = footprint.max_new_tokens
        if living.paced:
            new = Tokens(min(new, living.seen_tokens + lag))
        held += Footprint(footprint.prompts, new, footprint.sequences).peak_blocks(ledger.layout)
    return held


class Stuckness:
    """Whether an engine that is healthy by its own word makes no progress (vllm#45388, #53130): somebody is there, and
    either nobody runs, or all its places are taken by requests that wait for something else."""

    __slots__ = ("_looks", "_progress", "is_stuck")

    def __init__(self) -> None:
        self._looks = 0
        self._progress: float | None = None
        self.is_stuck = False

    def looked(self, look: Look, max_num_seqs: int, *, moved: bool) -> bool:
        """Whether it is stuck. `moved`: tokens of it were seen since the last look, or requests ended well."""
        before = self._progress
        if look.progress is not None:
            self._progress = look.progress
        advanced = None not in (before, look.progress) and look.progress != before
        if moved or advanced or look.running is None or look.waiting is None:
            self._looks = 0
            if moved or advanced:
                self.is_stuck = False
        elif _holds_still(look.running, look.waiting, look, max_num_seqs):
            self._looks += 1
        else:
            self._looks = 0
            self.is_stuck = self.is_stuck and look.running + look.waiting > 0
        self.is_stuck = self.is_stuck or self._looks >= LOOKS_STUCK
        return self.is_stuck


def _holds_still(running: int, waiting: int, look: Look, max_num_seqs: int) -> bool:
    if running == 0 and waiting > 0:
        return True
    deferred = look.deferred or 0
    return look.progress is not None and deferred > 0 and running + deferred >= max_num_seqs


class Restarts:
    """Whether the process behind an address is another one than at the last look."""

    __slots__ = ("_progress", "_started")

    def __init__(self) -> None:
        self._started: float | None = None
        self._progress: float | None = None

    def looked(self, look: Look) -> bool:
        """By its start time, or by counters that fell; what an engine does not tell says nothing."""
        started, progress = self._started, self._progress
        if look.started is not None:
            self._started = look.started
        if look.progress is not None:
            self._progress = look.progress
        if look.started is not None and started is not None:
            return look.started != started
        return look.progress is not None and progress is not None and look.progress < progress
