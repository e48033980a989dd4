"""Decides how much and how long the data plane accepts: every bound of the server and of the upstream pool, by name.

Time limits are checked by one sweep over the open connections and not by a timer each, so a limit acts at the earliest
when it is reached and at the latest one sweep (`sweep_s`) later.
"""

from dataclasses import dataclass
from typing import Final

from kvbudget.errors import BadValueError
from kvbudget.units import KIB, MIB

_SLOWEST_SWEEP_S: Final = 1.0
_FASTEST_SWEEP_S: Final = 0.02
UNCHARGED_PART: Final = 4
"""One connection in so many may carry requests that are not charged."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one client may cost. Raises BadValueError when a limit is not positive."""

    header_bytes: int = 64 * KIB
    """Bytes of request line and headers together; beyond it 431."""
    body_bytes: int = 16 * MIB
    """Bytes of a request body, de-chunked; beyond it 413."""
    buffered_bytes: int = 512 * MIB
    """Bytes of request bodies over all connections, from their arrival until an answer begins or ends; see
    `buffered_most_bytes`. A body beyond it is answered with 503. Bodies under 64 KiB are not counted."""
    connections: int = 10_000
    """Open client connections; one more is answered with 503 and closed."""
    head_s: float = 20.0
    """Seconds from the first byte of a request (or from the accept) until its head is whole."""
    body_s: float = 60.0
    """Seconds from the head until the whole body has arrived."""
    idle_s: float = 75.0
    """Seconds that a keep-alive connection may wait for its next request."""
    write_stall_s: float = 60.0
    """Seconds without the client accepting a single byte while we have some for it; then the connection is closed."""

    def __post_init__(self) -> None:
        _require_positive(self, "header_bytes", "body_bytes", "buffered_bytes", "connections")
        _require_positive(self, "head_s", "body_s", "idle_s", "write_stall_s")

    @property
    def buffered_most_bytes(self) -> int:
        """`buffered_bytes`, or one whole body where that is more: a lawful body must be able to get in."""
        return max(self.buffered_bytes, self.body_bytes)

    @property
    def sweep_s(self) -> float:
        """Seconds between two looks at the clock: a quarter of the shortest limit, within 0.02 and 1."""
        return _sweep_s(self.head_s, self.body_s, self.idle_s, self.write_stall_s)


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """What one engine may cost. Raises BadValueError when a limit is not positive."""

    connections: int = 8192
    """Open connections to the origin that carry relays; further ones wait, at most `connect_s`."""
    uncharged_waiting: int = 256
    """Relays without a charge that may wait for a connection; one more ends as NO_CONNECTION."""
    own_connections: int = 16
    """Connections beyond `connections` that only the gate's own calls (probes, /tokenize) may use."""
    connect_s: float = 5.0
    """Seconds to wait for a free connection, and again to open one."""
    reuse_race_s: float = 0.05
    """Seconds after its sending in which a request may be sent again, when a reused connection dies without a byte."""
    response_s: float | None = 600.0
    """Seconds from sending the request to the first byte of the answer; None waits for ever."""
    read_stall_s: float | None = 300.0
    """Seconds between two reads of an answer while the client keeps up; None waits for ever."""
    idle_s: float = 4.0
    """Seconds that a pooled connection is kept; less than the engine's own limit (uvicorn closes after 5)."""

    def __post_init__(self) -> None:
        _require_positive(self, "connections", "uncharged_waiting", "own_connections", "connect_s", "reuse_race_s")
        _require_positive(self, "response_s", "read_stall_s", "idle_s")

    @property
    def uncharged_connections(self) -> int:
        """Connections that relays without a charge may use at most: a quarter of all, at least one."""
        return max(1, self.connections // UNCHARGED_PART)

    @property
    def sweep_s(self) -> float:
        """Seconds between two looks at the clock: a quarter of the shortest limit, within 0.02 and 1."""
        return _sweep_s(self.connect_s, self.response_s, self.read_stall_s, self.idle_s)


def _require_positive(limits: object, *names: str) -> None:
    for name in names:
        value = getattr(limits, name)
        if value is not None and not value > 0:
            raise BadValueError(f"{name}: {value} is not a limit", fix="give a number above 0")


def _sweep_s(*limits_s: float | None) -> float:
    shortest_s = min(limit_s for limit_s in limits_s if limit_s is not None)
    return min(_SLOWEST_SWEEP_S, max(_FASTEST_SWEEP_S, shortest_s / 4))
