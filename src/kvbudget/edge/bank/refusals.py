"""Decides what an error of a Valkey or Redis means for who runs the gate, and whether to look for another server."""

from typing import Final, NamedTuple

from kvbudget.edge.bank.store import LedgerError
from kvbudget.errors import printable


class _Meaning(NamedTuple):
    what: str
    fix: str
    leave: bool = False  # this connection is of no use: look for the server anew


_ROLE_FIX: Final = "the gate looks for the primary anew; if this stays, the address names a replica"
_LOGIN_FIX: Final = (
    "set KVBUDGET_LEDGER_PASSWORD, or ?password_file=FILE and a user in the address, to what the server knows"
)
_MEANINGS: Final = {
    "NOAUTH": _Meaning("wants a password", _LOGIN_FIX, True),
    "WRONGPASS": _Meaning("does not take this user and password", _LOGIN_FIX, True),
    "NOPERM": _Meaning("does not allow this user enough", "docs/how-to/shared-ledger.md lists the rights"),
    "READONLY": _Meaning("is a replica, which takes no writes", _ROLE_FIX, True),
    "MASTERDOWN": _Meaning("is a replica without its primary", _ROLE_FIX, True),
    "NOREPLICAS": _Meaning("has too few replicas to take writes", "look at its replicas (min-replicas-to-write)"),
    "LOADING": _Meaning("is reading its data after a start", "wait: the gate tries again by itself", True),
    "OOM": _Meaning("has no memory left (maxmemory)", "give it more memory; a ledger needs a few KiB for a pool"),
    "MISCONF": _Meaning("takes no writes, since it cannot save", "look at its disk and its log"),
    "BUSY": _Meaning("is busy with somebody's script", "SCRIPT KILL ends that; give the ledger a server of its own"),
    "CLUSTERDOWN": _Meaning("is of a cluster that is down", "CLUSTER INFO says which slots nobody serves", True),
    "KVBUDGET": _Meaning(
        "cannot use what is stored",
        "name another ledger with ?name=, or, when no gate of the other version runs any more, delete the pool's key: "
        "docs/how-to/shared-ledger.md",
    ),
    "WRONGTYPE": _Meaning("holds something else under the ledger's key", "name another ledger with ?name="),
}  # fmt: skip
# What a user may not do inside of a script is told without a code: Redis 7.0 and Valkey 9.1.
_RIGHTS: Final = ("user executing the script", "ACL failure in script")
_OTHER: Final = _Meaning("refuses", "Valkey 7.2 or newer, or Redis 6.2 or newer, is needed; look at its log")


def refusal(place: str, text: str) -> tuple[LedgerError, bool]:
    """`text`: the server's error, which begins with its code. Whether the connection should be given up, too."""
    code = "NOPERM" if any(words in text for words in _RIGHTS) else text.split(" ", 1)[0]
    meaning = _MEANINGS.get(code, _OTHER)
    return LedgerError(f"ledger {place} {meaning.what}: {printable(text, 200)}", fix=meaning.fix), meaning.leave
