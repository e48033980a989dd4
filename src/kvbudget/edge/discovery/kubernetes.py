"""Follows the EndpointSlices of a service: one list, then a watch from there on, and a list anew when that is too old.

The protocol is that of "Efficient detection of changes" of the Kubernetes API concepts: a watch begins at the
resourceVersion of a list and answers with one JSON object a line; BOOKMARK carries the version on without a change;
410 Gone, as a status or as an ERROR event, means that the version is forgotten and the list is to be read again. A
watch that ends is begun again where it stood. The service account's token is read for each request: it is renewed while
the gate runs.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import orjson

from kvbudget.edge.discovery.endpoints import SERVICE_LABEL, Slices
from kvbudget.edge.discovery.roster import Found
from kvbudget.edge.discovery.sources import KubernetesAccess, KubernetesService
from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.messages import Headers
from kvbudget.edge.http.tls import engine_context
from kvbudget.edge.http.upstream import Upstream
from kvbudget.errors import BadConfigError

log = logging.getLogger("kvbudget.discovery")

_LIST_S: Final = 30.0
_WATCH_S: Final = 120  # the server ends a watch then; bookmarks come about every minute
_SILENT_S: Final = 150.0  # a connection on which nothing comes for longer is dead
_LONGEST_LINE: Final = 4 * 1024 * 1024
_GONE: Final = 410
_FIX: Final = "a Role of the service account needs get, list and watch of endpointslices (discovery.k8s.io)"


class TooOldError(Exception):
    """The watch's place in history is forgotten."""


class EndpointWatch:
    """Follows one service. `follow` runs until something fails, and goes on where it stood when it is called again."""

    def __init__(self, access: KubernetesAccess, service: KubernetesService, *, silent_s: float = _SILENT_S) -> None:
        tls = engine_context(access.ca_path) if access.url.startswith("https:") else None
        limits = UpstreamLimits(response_s=_LIST_S, read_stall_s=silent_s)
        self.upstream = Upstream(access.url, limits, tls)
        self._token_path = access.token_path
        self._port = service.port
        selector = quote(f"{SERVICE_LABEL}={service.name}", safe="")
        path = f"/apis/discovery.k8s.io/v1/namespaces/{service.namespace}/endpointslices?labelSelector={selector}"
        self._path = path.encode()
        self._slices = Slices()
        self._version: str | None = None  # None: the list is to be read

    async def follow(self, tell: Callable[[list[Found]], None]) -> None:
        """Tell of every state, until a watch ends well. Raises UpstreamError, BadConfigError, OSError."""
        if self._version is None:
            await self._list()
            tell(self._slices.found(self._port))
        try:
            await self._watch(tell)
        except TooOldError:
            log.info("the watch's place is forgotten by the API server: the list is read anew")
            self._version = None
        except BadConfigError:  # what it said since is not understood
            self._version = None
            raise

    async def _list(self) -> None:
        answer = await self.upstream.request(b"GET", self._path, self._headers(), b"", _LIST_S)
        if answer.status != 200:
            raise BadConfigError(f"the API server answered {answer.status}: {_why(answer.body)}", fix=_FIX)
        try:
            document = orjson.loads(answer.body)
            items, version = document["items"] or [], document["metadata"]["resourceVersion"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise BadConfigError("the API server's list cannot be read", fix=_FIX) from None
        if not isinstance(items, list) or not isinstance(version, str):
            raise BadConfigError("the API server's list cannot be read", fix=_FIX)
        self._slices.replace(items)
        self._version = version

    async def _watch(self, tell: Callable[[list[Found]], None]) -> None:
        assert self._version is not None  # noqa: S101 - the list was read
        more = f"&watch=1&allowWatchBookmarks=true&timeoutSeconds={_WATCH_S}&resourceVersion={quote(self._version)}"
        pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        target = self._path + more.encode()
        answering = asyncio.ensure_future(self.upstream.stream(b"GET", target, self._headers(), pieces.put_nowait))
        answering.add_done_callback(lambda _: pieces.put_nowait(None))
        try:
            pending = b""
            while (piece := await pieces.get()) is not None:
                *lines, pending = (pending + piece).split(b"\n")
                if len(pending) > _LONGEST_LINE:
                    raise BadConfigError(f"an event of more than {_LONGEST_LINE:,} bytes", fix=_FIX)
                events = [self._event(line) for line in lines if line.strip()]
                if events:  # a bookmark as well: it says that what is known is of now
                    tell(self._slices.found(self._port))
            answer = await answering
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
        if answer.status == _GONE:
            raise TooOldError
        if answer.status != 200:
            raise BadConfigError(f"the API server answered {answer.status}: {_why(answer.body)}", fix=_FIX)
        tell(self._slices.found(self._port))

    def _event(self, line: bytes) -> str:
        """Takes one in; its type. Raises TooOldError, BadConfigError."""
        try:
            event = orjson.loads(line)
            kind, told = event["type"], event["object"]
        except (orjson.JSONDecodeError, KeyError, TypeError):
            raise BadConfigError("an event of the API server cannot be read", fix=_FIX) from None
        if kind == "ERROR":
            if isinstance(told, dict) and told.get("code") == _GONE:
                raise TooOldError
            raise BadConfigError(f"the API server ended the watch: {_message(told)}", fix=_FIX)
        if kind in ("ADDED", "MODIFIED", "DELETED"):
            self._slices.changed(kind, told)
        version = (told.get("metadata") or {}).get("resourceVersion") if isinstance(told, dict) else None
        if isinstance(version, str):
            self._version = version
        return str(kind)

    def _headers(self) -> Headers:
        headers = [(b"accept", b"application/json")]
        if self._token_path is not None:
            token = Path(self._token_path).read_bytes().strip()
            headers.append((b"authorization", b"Bearer " + token))
        return headers


def _why(body: bytes) -> str:
    """What a Status object says."""
    try:
        return _message(orjson.loads(body))
    except orjson.JSONDecodeError:
        return "no reason"


def _message(status: Any) -> str:
    message = status.get("message") if isinstance(status, dict) else None
    return message[:200] if isinstance(message, str) else "no reason"
