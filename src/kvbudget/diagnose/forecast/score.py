"""Decides how good warnings were, once it is known what came: hits, false episodes, and how early they were.

A decision is a minute at which demand was below the limit; it is right to warn when the limit is reached within the
horizon. An onset is the first minute at the limit after a whole horizon below it. Warnings less than a horizon apart
are one episode; it is false when the limit was reached neither within it nor in the horizon after it.
"""

from collections import deque
from typing import NamedTuple


class Figures(NamedTuple):
    """None where nothing of the kind has happened yet."""

    decisions: int
    positives: int
    precision: float | None
    recall: float | None
    f1: float | None
    episodes: int
    false_episodes_per_day: float | None
    onsets: int
    warned_onsets: int  # those with a warning at least 5/6 of the horizon before: 25 of 30 minutes
    mean_lead_minutes: float | None  # from the earliest warning within the horizon before, 0 without


class Score:
    """Of one rule that says every minute whether it warns."""

    def __init__(self, horizon: int) -> None:
        self._horizon = horizon
        self._early = horizon * 5 // 6
        self._hits = self._misses = self._false = self._quiet = 0
        self._minutes = 0
        self._episodes = self._false_episodes = 0
        self._onsets = self._warned = self._lead = 0
        self._warnings: deque[int] = deque()  # within the horizon, this minute not
        self._reached_at = -horizon - 1
        self._episode_until: int | None = None  # the last warning of the one that is open
        self._episode_true = False

    def minute(self, at: int, *, saturated: bool, warns: bool) -> None:
        """Every minute as it comes."""
        self._minutes += 1
        warnings = self._warnings
        while warnings and warnings[0] < at - self._horizon:
            warnings.popleft()
        if saturated:
            if at - self._reached_at > self._horizon:
                self._onsets += 1
                lead = at - warnings[0] if warnings else 0
                self._lead += lead
                self._warned += lead >= self._early
            self._reached_at = at
        if self._episode_until is not None:
            if at > self._episode_until + self._horizon:
                self._close()
            elif saturated:
                self._episode_true = True
        if warns and not saturated:
            warnings.append(at)
            if self._episode_until is None:
                self._episodes += 1
                self._episode_true = False
            self._episode_until = at

    def decided(self, *, warned: bool, reached: bool) -> None:
        """What came of one decision."""
        if warned:
            self._hits += reached
            self._false += not reached
        else:
            self._misses += reached
            self._quiet += not reached

    def _close(self) -> None:
        self._false_episodes += not self._episode_true
        self._episode_until = None

    def figures(self) -> Figures:
        """So far. An episode whose end is not known yet is no false one."""
        positives = self._hits + self._misses
        warned = self._hits + self._false
        return Figures(
            decisions=positives + self._false + self._quiet,
            positives=positives,
            precision=_share(self._hits, warned),
            recall=_share(self._hits, positives),
            f1=_share(2 * self._hits, warned + positives),
            episodes=self._episodes,
            false_episodes_per_day=_share(self._false_episodes * 1440, self._minutes),
            onsets=self._onsets,
            warned_onsets=self._warned,
            mean_lead_minutes=_share(self._lead, self._onsets),
        )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
