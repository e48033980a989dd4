"""Decides from how requests end whether an instance gets work: none after failures in a row, then one to try, then all.

    CLOSED --failures in a row--> OPEN --time passes--> (one request on trial) --ends well--> CLOSED, with a slow start
                                   ^                              |
                                   +--------- fails, twice as long+

What an engine says of itself (`/health`) is another matter: an engine that answers that, and fails every request, is
what this is for.
"""

from kvbudget.gate.fleet.options import FleetConfig

RAMP_STEPS = 8  # of a slow start


class Circuit:
    """The trust in one instance."""

    __slots__ = ("_config", "_failures", "_open_ns", "_opened", "_trial", "until_ns")

    def __init__(self, config: FleetConfig) -> None:
        self._config = config
        self._failures = 0
        self._opened = 0  # times since it last did well
        self._open_ns = config.open_ns
        self._trial: str | None = None  # the request that shows whether it is well
        self.until_ns: int | None = None  # None: closed

    @property
    def is_open(self) -> bool:
        """Whether it gets no work, or only one request on trial."""
        return self.until_ns is not None

    def takes(self, now_ns: int) -> bool:
        """Whether it may get one more request."""
        return self.until_ns is None or (self.until_ns <= now_ns and self._trial is None)

    def given(self, request_id: str) -> None:
        """It got one."""
        if self.until_ns is not None:
            self._trial = request_id

    def withdrawn(self, request_id: str) -> None:
        """A request ended in a way that tells nothing of the engine."""
        if self._trial == request_id:
            self._trial = None

    def did_well(self) -> bool:
        """A request ended well; whether that closes the circuit."""
        self._failures = 0
        was_open, self.until_ns = self.until_ns is not None, None
        self._trial = None
        self._open_ns = self._config.open_ns
        return was_open

    def failed(self, now_ns: int, *, may_open: bool) -> bool:
        """A request failed; whether that opens the circuit. `may_open`: not too many others are out."""
        self._failures += 1
        if self.until_ns is not None:
            if self._trial is None:
                return False  # one from before
            self._trial = None
            self._open_ns = min(2 * self._open_ns, self._config.longest_open_ns)
        elif self._failures < self._config.failures or not may_open:
            return False
        self.until_ns = now_ns + self._open_ns
        return True

    def due_ns(self, now_ns: int) -> int | None:
        """When it may get a request on trial, if that is to come."""
        return self.until_ns if self.until_ns is not None and self.until_ns > now_ns else None


class SlowStart:
    """How much an instance that came back gets: in RAMP_STEPS equal steps up to all."""

    __slots__ = ("_ramp_ns", "_since_ns")

    def __init__(self, ramp_ns: int) -> None:
        self._ramp_ns = ramp_ns
        self._since_ns: int | None = None

    def begin(self, now_ns: int) -> None:
        """It came back."""
        self._since_ns = now_ns if self._ramp_ns > 0 else None

    def share(self, now_ns: int) -> float:
        """What of its pool it may use."""
        if self._since_ns is None:
            return 1.0
        step = 1 + (now_ns - self._since_ns) * RAMP_STEPS // self._ramp_ns
        if step >= RAMP_STEPS:
            self._since_ns = None
            return 1.0
        return step / RAMP_STEPS

    def due_ns(self, now_ns: int) -> int | None:
        """When the share grows next."""
        if self._since_ns is None:
            return None
        step = 1 + (now_ns - self._since_ns) * RAMP_STEPS // self._ramp_ns
        return self._since_ns + -(-step * self._ramp_ns // RAMP_STEPS)
