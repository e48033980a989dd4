"""Fleets of small gates."""

from collections.abc import Callable, Sequence

import pytest

from kvbudget.gate.commands import Command, Forward, Reject
from kvbudget.gate.events import Arrived, BackendChanged, CapacityChanged
from kvbudget.gate.fleet.events import Joined
from kvbudget.gate.fleet.fleet import Fleet
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.options import FleetConfig, MemberOptions
from kvbudget.gate.gate import Gate, GateConfig
from kvbudget.gate.policies import Policy
from kvbudget.gate.refusing.refusals import Refusal
from kvbudget.pool.groups import uniform_layout
from kvbudget.units import Blocks, Tokens


def a_member(name: str, config: FleetConfig, options: MemberOptions | None = None, **gate: object) -> Member:
    settings = {"policy": Policy.WORST_CASE, "abort_tail_ns": 0, "lag_steps": 0, **gate}
    own = Gate(GateConfig(**settings), uniform_layout(16), Blocks(0))  # type: ignore[arg-type]
    own.backend_up = False
    return Member(name, own, options or MemberOptions(), config)


class Scene:
    """A fleet and its clock. Commands are told as short texts: `a>x` (a goes to x), `a..x` (a waits there), `a!why`."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.now = 0

    def at(self, name: str) -> Member:
        member = self.fleet.named(name)
        assert member is not None
        return member

    def told(self, commands: Sequence[Command]) -> list[str]:
        return [self._told(command) for command in commands]

    def _told(self, command: Command) -> str:
        if isinstance(command, Reject):
            return f"{command.request_id}!{command.refusal.value}"
        where = self.fleet.placed(command.request_id).name
        return f"{command.request_id}{'>' if isinstance(command, Forward) else '..'}{where}"

    def push(self, event: object) -> list[str]:
        return self.told(self.fleet.handle(event, self.now))  # type: ignore[arg-type]

    def push_at(self, name: str, event: object) -> list[str]:
        return self.told(self.fleet.handle_at(self.at(name), event, self.now))  # type: ignore[arg-type]

    def arrive(self, name: str, prompt: int = 16, new: int | None = 16, **more: object) -> list[str]:
        limit = None if new is None else Tokens(new)
        return self.push(Arrived(name, (Tokens(prompt),), limit, Tokens(64), **more))  # type: ignore[arg-type]

    def join(self, name: str, options: MemberOptions | None = None, **gate: object) -> list[str]:
        """A new one, which is away until `up`."""
        member = a_member(name, self.fleet.config, options, **gate)
        return self.told(self.fleet.handle_at(member, Joined(), self.now))

    def up(self, name: str, blocks: int, context: int | None = None) -> list[str]:
        cap = None if context is None else Tokens(context)
        told = self.push_at(name, CapacityChanged(uniform_layout(16), Blocks(blocks), cap))
        return told + self.push_at(name, BackendChanged(True))


@pytest.fixture
def make_fleet() -> Callable[..., Scene]:
    """`make_fleet(x=(blocks, context, options), y=...)`: all up, worst-case, no tails, no slow start unless told.

    `open_to_others`: members may join and leave, also while there is none.
    """

    def make(
        config: FleetConfig | None = None,
        gate: dict[str, object] | None = None,
        open_to_others: bool = False,
        **sizes: tuple[object, ...],
    ) -> Scene:
        config = config or FleetConfig(failures=2, open_ns=100, longest_open_ns=300, ramp_ns=0)
        members = []
        for name, size in sizes.items():
            options = size[2] if len(size) > 2 else None
            members.append(a_member(name, config, options, **(gate or {})))  # type: ignore[arg-type]
        home = a_member("home", config, None, **(gate or {})) if open_to_others else None
        scene = Scene(Fleet(members, config, home))
        for name, size in sizes.items():
            if size[0]:
                assert scene.up(name, *size[:2]) == []  # type: ignore[arg-type]
        return scene

    return make


@pytest.fixture
def refusal_of() -> Callable[[Sequence[Command]], Refusal]:
    """The refusal of the only command."""

    def of(commands: Sequence[Command]) -> Refusal:
        (command,) = commands
        assert isinstance(command, Reject)
        return command.refusal

    return of
