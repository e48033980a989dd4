"""What stands for all instances while none has been found: a gate without a pool, and an engine that cannot be reached.

What passes to it without a charge, models aside, gets the 503 of an engine that is away.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from kvbudget.edge.discovery.sources import Sought
from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.upstream import Upstream
from kvbudget.edge.instances.backend import Backend, EngineFacts
from kvbudget.gate.config import GateConfig
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.options import FleetConfig, MemberOptions
from kvbudget.gate.gate import Gate
from kvbudget.pool.groups import uniform_layout
from kvbudget.units import Blocks

_NO_SOCKET: Final = "unix:/dev/null/nowhere"  # below a file that is no folder there is none


class Nowhere(NamedTuple):
    """As much of an `Instance` as is asked for; it is never looked at."""

    member: Member
    backend: Backend
    upstream: Upstream


def nowhere(sought: Sequence[Sought], config: GateConfig, fleet: FleetConfig) -> Nowhere:
    """For these sources."""
    told = " and ".join([one.shown_name for one in sought])
    gate = Gate(config, uniform_layout(16), Blocks(0))
    gate.backend_up = False
    upstream = Upstream(_NO_SOCKET, UpstreamLimits())
    backend = Backend(told, upstream, name=told)
    backend.facts = EngineFacts(up=False, problem=f"no engine has been found by {told}")
    return Nowhere(Member(told, gate, MemberOptions(), fleet), backend, upstream)
