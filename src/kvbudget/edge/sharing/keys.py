"""Decides by which secret the gates of a ledger make the keys of prompts, so that a key means the same at all of them.

Each looks first what the others go by, and takes that; only where nobody says anything it tells a secret of its own. Of
several that were told at once the least is taken by all. While gates go by different ones, they only do not know what
they have in common.
"""

import logging
import os
import re
from collections.abc import Sequence
from typing import Final

from kvbudget.edge.bank.store import BankStore
from kvbudget.edge.sharing.notes import SharedNotes
from kvbudget.edge.tokens.keys import PrefixKeys
from kvbudget.errors import BadValueError

log = logging.getLogger("kvbudget.ledger")

EVERY_S: Final = 3.0
TOPIC: Final = " keys"  # no instance has such a name
_NOTE: Final = re.compile(r"1 ([0-9a-f]{32})")  # version, secret
_SECRET_BYTES: Final = 16


class SharedKeys:
    """One gate's part, made before it runs."""

    def __init__(self, store: BankStore, life: str, keys: PrefixKeys, *, every_s: float = EVERY_S) -> None:
        """`life`: a name that is never used again. `keys`: told what is agreed on."""
        self._keys = keys
        self._has_read = False
        self.notes = SharedNotes(
            store, TOPIC, life, self._write, self._read, every_s=every_s, log=log,
            alone="what prompts at several gates begin with is charged by each of them", refused="said of its keys",
        )  # fmt: skip

    async def _write(self) -> str:
        if self._keys.agreed is None and self._has_read:
            self._keys.agreed = os.urandom(_SECRET_BYTES)
        return "" if self._keys.agreed is None else f"1 {self._keys.agreed.hex()}"

    async def _read(self, notes: Sequence[tuple[str, str]]) -> None:
        secrets = [secret async for _, secret in self.notes.readable(notes, _secret_in)]
        if self._keys.agreed is not None:
            secrets.append(self._keys.agreed)
        self._keys.agreed = min(secrets, default=None)
        self._has_read = True


def _secret_in(note: str) -> bytes:
    """Raises BadValueError."""
    found = _NOTE.fullmatch(note)
    if found is None:
        raise BadValueError("a note of another version", fix="run one version of gates on a ledger")
    return bytes.fromhex(found[1])
