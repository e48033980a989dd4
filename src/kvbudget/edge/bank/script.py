"""Decides how a bank is called inside of a Valkey or Redis: what the script is told, and what its reply means."""

from hashlib import sha1
from importlib.resources import files
from typing import Final, NamedTuple

from kvbudget.edge.bank.store import LedgerError
from kvbudget.gate.bank.board import Notes, Put
from kvbudget.gate.bank.terms import Answer, Call, Slice

SCRIPT: Final = files("kvbudget.edge.bank").joinpath("bank.lua").read_bytes()
SHA: Final = sha1(SCRIPT, usedforsecurity=False).hexdigest().encode()
BOARD_SCRIPT: Final = files("kvbudget.edge.bank").joinpath("board.lua").read_bytes()
BOARD_SHA: Final = sha1(BOARD_SCRIPT, usedforsecurity=False).hexdigest().encode()


class Keys(NamedTuple):
    """Of one pool. The part in braces decides the node of a cluster, so that both are on the same one."""

    bank: bytes
    channel: bytes


def keys_of(ledger: str, pool: str) -> Keys:
    """`ledger`: its name, where several share a server."""
    tag = f"kvbudget:{{{ledger}/{pool}}}:"
    return Keys(f"{tag}bank".encode(), f"{tag}wake".encode())


def board_key(ledger: str, topic: str) -> bytes:
    """Of the notes of one topic."""
    return f"kvbudget:{{{ledger}/{topic}}}:notes".encode()


def board_arguments(key: bytes, put: Put, wall_ms: int | None = None) -> list[bytes | int | str]:
    """What follows the script of the board, or its hash. `wall_ms`: only tests give it."""
    return [1, key, b"" if wall_ms is None else wall_ms, *put]


def notes_of(reply: object) -> Notes:
    """Raises LedgerError for what is no answer of a board."""
    match reply:
        case [int(seen), int(known), *texts] if len(texts) % 2 == 0:
            words = [one.decode(errors="replace") if isinstance(one, bytes) else "" for one in texts]
            return Notes(seen, known == 1, tuple(zip(words[::2], words[1::2], strict=True)))
    raise LedgerError(f"ledger: {str(reply)[:80]!r} is no answer to a note", fix=_REPORT)


def arguments(
    keys: Keys, publish: bytes, run_id: bytes, call: Call, wall_ms: int | None = None
) -> list[bytes | int | str]:
    """What follows the script or its hash. `run_id`: of the server that is called. `wall_ms`: only tests give it."""
    parts: list[bytes | int | str] = [
        1, keys.bank, keys.channel, publish, run_id, b"" if wall_ms is None else wall_ms,
        call.branch, call.number, call.lease_ms, call.priority, call.waited_ms, int(call.leaves),
        *(("", "", "") if call.reading is None else call.reading),
    ]  # fmt: skip
    for line in call.lines:
        parts += line
    return parts


def answer_of(call: Call, reply: object) -> Answer | None:
    """None: the call was out of date. Raises LedgerError for what is no answer to this call."""
    if reply is None:
        return None
    lines = () if call.leaves else call.lines
    match reply:
        case [
            bytes(branch),
            call.number,
            known,
            short,
            settling,
            int(branches),
            yields,
            int(to),
            missing,
            *figures,
        ] if branch == call.branch.encode() and len(figures) == 2 * len(lines):
            pairs = zip(lines, figures[::2], figures[1::2], strict=True)
            slices = {line.account: Slice(_whole(granted), _whole(elsewhere)) for line, granted, elsewhere in pairs}
            return Answer(
                call.number,
                known == 1,
                short == 1,
                settling == 1,
                branches,
                slices,
                to if yields else None,
                missing == 1,
            )
    raise LedgerError(f"ledger: {str(reply)[:80]!r} is no answer to call {call.number} of {call.branch}", fix=_REPORT)


def names_in(payload: bytes) -> list[str]:
    """The branches that should call soon, the first first."""
    return payload.decode(errors="replace").split("\n")


_REPORT: Final = "report this; the connection is opened anew"


def _whole(figure: object) -> int:
    if not isinstance(figure, int):
        raise LedgerError(f"ledger: {str(figure)[:80]!r} is no whole number", fix=_REPORT)
    return figure
