"""Decides when each step of a leap ends, and how many blocks are held meanwhile.

While all that happens is that those who decode get a token each, step k of a leap takes `first_ns + k * slope_ns`
nanoseconds, the cost being linear and each context a token longer; m steps take `m * first + slope * m (m - 1) / 2`,
without rounding.
"""

from math import isqrt


class Leap:
    """The leap that is under way, from `begin_ns` on; `steps` 0: it is a step that the engine scheduled."""

    __slots__ = ("begin_ns", "first_ns", "slope_ns", "steps")

    def __init__(self) -> None:
        self.begin_ns = 0
        self.first_ns = 0  # of its first step
        self.slope_ns = 0
        self.steps = 0

    def lasts_ns(self, steps: int) -> int:
        """The first so many steps."""
        return steps * self.first_ns + self.slope_ns * (steps * (steps - 1) // 2)

    @property
    def end_ns(self) -> int:
        """When its last step ends."""
        return self.begin_ns + self.lasts_ns(self.steps)

    def ended_by(self, now_ns: int) -> int:
        """How many of its steps have ended by now, if it had no end."""
        spent_ns = now_ns - self.begin_ns
        slope, double = self.slope_ns, 2 * self.first_ns - self.slope_ns
        if not slope:
            return spent_ns // self.first_ns
        return (isqrt(double * double + 8 * slope * spent_ns) - double) // (2 * slope)

    def cut(self, now_ns: int) -> bool:
        """End it with the step that is under way at `now_ns`; whether that is sooner than it was to end."""
        spent_ns = now_ns - self.begin_ns
        steps = max(1, self.ended_by(now_ns - 1) + 1) if spent_ns > 0 else 1
        if steps >= self.steps:
            return False
        self.steps = steps
        return True

    def blocks_taken(self, phases: list[int], phase: int) -> tuple[int, int]:
        """(blocks that are taken in all of it, those times the nanoseconds until its end). In step k,
        `phases[(phase + k) % len(phases)]` are."""
        taken, block_ns, left_ns, duration_ns = 0, 0, self.lasts_ns(self.steps), self.first_ns
        slope_ns, size = self.slope_ns, len(phases)
        for _ in range(self.steps):
            need = phases[phase]
            if need:
                taken += need
                block_ns += need * left_ns  # held from this step to the end of the leap
            left_ns -= duration_ns
            duration_ns += slope_ns
            phase += 1
            if phase == size:
                phase = 0
        return taken, block_ns
