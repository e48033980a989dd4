"""Decides what is told of those who wait, for people and machines: in the state of the gate and on its live page."""

from kvbudget.gate.fleet.member import Member
from kvbudget.gate.waiting.why import who_waits


def waiting_at(member: Member, most: int, now_ns: int) -> list[dict[str, object]]:
    """The first `most` at one instance. `why`: by its gate's last look; `left_ms`: until it is expected to be let in;
    `expected_ms`: the whole wait as it was foreseen when it came, 0 if it was not."""
    return [
        {
            "instance": member.name,
            "tenant": waiting.arrived.tenant,
            "priority": waiting.arrived.priority,
            "blocks": waiting.peak_blocks,
            "why": why.value,
            "waited_ms": (now_ns - waiting.since_ns) // 1_000_000,
            "left_ms": left_ns // 1_000_000,
            "expected_ms": waiting.expected_ns // 1_000_000,
            "deadline_in_ms": (waiting.deadline_ns - now_ns) // 1_000_000,
        }
        for waiting, why, left_ns in who_waits(member.gate, most, now_ns)
    ]
