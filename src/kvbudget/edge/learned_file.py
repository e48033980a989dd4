"""Decides when what the `learned` policy has seen is read from its file, and when it is written there.

Read once, before the gate serves. Written every few minutes and when the gate ends, whole or not at all, by a thread:
only taking the state is done in the event loop (40 us for each of at most 1,024 kinds of requests). A file that cannot
be used is no reason not to serve: it is said, the policy learns anew, and the file is put aside (`.bad`) when there is
something to write in its place.
"""

import asyncio
import contextlib
import logging
import os

import orjson

from kvbudget.edge.given_file import open_given
from kvbudget.edge.whole_file import write_whole
from kvbudget.errors import BadValueError, InputError, printable
from kvbudget.gate.learning.learned import LearnedPolicy

log = logging.getLogger("kvbudget.learned")

SCHEMA = "kvbudget.learned/1"
EVERY_S = 300.0
_LARGEST_BYTES = 64 * 1024 * 1024
_FIX = "give the file that kvbudget serve wrote, or a new name"


class LearnedFile:
    """The file at `path` that belongs to one policy."""

    def __init__(self, path: str, policy: LearnedPolicy, *, every_s: float = EVERY_S) -> None:
        self.path = path
        self._policy = policy
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None
        self._unusable = False  # what is there is not ours, and must not be lost

    def load(self) -> None:
        """Go on from the file. Raises BadValueError if there can be none: its folder is missing, or it is no file."""
        folder = os.path.dirname(os.path.realpath(self.path))
        if not os.path.isdir(folder) or (os.path.exists(self.path) and not os.path.isfile(self.path)):
            # A device or a pipe must never be put aside, as a damaged file is.
            raise BadValueError(f"--learned-state: {_shown(self.path)} cannot be a file", fix="name one in a folder")
        try:
            state = self._read()
            if state is not None:
                self._policy.resume(state)
                log.info("%s: goes on from %.0f answers", _shown(self.path), self._policy.lengths.answers)
        except (InputError, OSError) as error:
            self._unusable = True
            shown = _shown(self.path)
            log.warning(
                "%s: %s; the policy learns anew, and the first write keeps this file as %s.bad", shown, error, shown
            )

    def keep(self) -> None:
        """Write it every few minutes from now on, until `close`."""
        self._task = asyncio.create_task(self._keep(), name="learned state")

    async def close(self) -> None:
        """Write it once more; may be called in any state, and again."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        await self.save()

    async def save(self) -> None:
        """Write what is known now, if there is anything."""
        if not self._policy.lengths.answers:
            return
        state = self._policy.state()
        try:
            await asyncio.to_thread(self._write, state)
        except (BadValueError, OSError) as error:
            log.warning("%s: what was learned is not kept: %s", _shown(self.path), error)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.save()
            except Exception:  # a bug here must not end what keeps the file, still less the gate
                log.exception("the learned state could not be taken")

    def _write(self, state: dict[str, object]) -> None:
        data = orjson.dumps({"schema": SCHEMA, **state})
        if self._unusable:
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.path, f"{self.path}.bad")
                log.info("%s: what could not be used is kept as %s.bad", _shown(self.path), _shown(self.path))
            self._unusable = False
        write_whole(self.path, data, "learned state")

    def _read(self) -> dict[str, object] | None:
        """None if there is no file yet. Raises OSError, and InputError for what is no state."""
        try:
            with open_given(self.path, fix=_FIX) as file:
                data = file.read(_LARGEST_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(data) > _LARGEST_BYTES:
            raise BadValueError("it is larger than 64 MiB", fix=_FIX)
        try:
            state = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise BadValueError(f"it is no JSON: {error}", fix=_FIX) from None
        if not isinstance(state, dict) or state.get("schema") != SCHEMA:
            raise BadValueError(f"it does not say schema {SCHEMA!r}", fix=_FIX)
        return state


def _shown(path: str) -> str:
    return printable(path[-200:]).replace("\n", "?")
