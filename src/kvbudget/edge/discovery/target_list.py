"""Reads a list of engines over HTTP, in the form of Prometheus' HTTP service discovery.

`[{"targets": ["10.0.0.7:8000", ...], "labels": {"__scheme__": "https"}}, ...]`: what feeds a Prometheus that scrapes
the engines feeds the gate as well. Each target is one engine; `__scheme__` is the only label that is read.
"""

import ssl
from typing import Final
from urllib.parse import urlsplit

import orjson

from kvbudget.edge.discovery.roster import Found
from kvbudget.edge.discovery.sources import TargetList
from kvbudget.edge.http.address import address_of
from kvbudget.edge.http.limits import UpstreamLimits
from kvbudget.edge.http.upstream import Upstream
from kvbudget.errors import BadConfigError, BadValueError
from kvbudget.units import is_digits

EVERY_S: Final = 10.0
_TIMEOUT_S: Final = 10.0
_MOST_TARGETS: Final = 10_000
_FIX: Final = 'answer 200 with [{"targets": ["HOST:PORT"], "labels": {}}]'


class ListReader:
    """Asks for one list again and again."""

    def __init__(self, listed: TargetList, tls: ssl.SSLContext | None = None) -> None:
        parts = urlsplit(listed.url)
        self._target = (parts.path or "/").encode() + (b"?" + parts.query.encode() if parts.query else b"")
        self.upstream = Upstream(f"{parts.scheme}://{parts.netloc}", UpstreamLimits(), tls)

    async def ask(self) -> list[Found]:
        """Who is on it now. Raises UpstreamError, or BadConfigError for an answer that is no such list."""
        headers = [(b"accept", b"application/json")]
        answer = await self.upstream.request(b"GET", self._target, headers, b"", _TIMEOUT_S)
        if answer.status != 200:
            raise BadConfigError(f"the list answered {answer.status}", fix=_FIX)
        return targets_in(answer.body)


def targets_in(body: bytes) -> list[Found]:
    """The engines that a list names. One target that cannot be is reason enough to take none: half a list would send
    away the other half. Raises BadConfigError."""
    try:
        groups = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadConfigError(f"the list is no JSON: {error}", fix=_FIX) from None
    if not isinstance(groups, list):
        raise BadConfigError("the list is no list of groups", fix=_FIX)
    found: list[Found] = []
    for number, group in enumerate(groups):
        targets = group.get("targets") if isinstance(group, dict) else None
        labels = group.get("labels") or {} if isinstance(group, dict) else {}
        if not isinstance(targets, list) or not isinstance(labels, dict):
            raise BadConfigError(f"group {number} of the list has no targets", fix=_FIX)
        scheme = labels.get("__scheme__", "http")
        found += [Found(_url(scheme, target)) for target in targets]
        if len(found) > _MOST_TARGETS:
            raise BadConfigError(f"the list has more than {_MOST_TARGETS:,} targets", fix="list engines only")
    return found


def _url(scheme: object, target: object) -> str:
    if scheme in ("http", "https") and isinstance(target, str) and is_digits(target.rpartition(":")[2]):
        try:
            address = address_of(f"http://{target}")  # judged alike, and without a context for TLS
        except BadValueError:
            address = None
        if address is not None and not address.prefix:
            return f"{scheme}://{address.authority.decode()}"
    raise BadConfigError(f"target {str(target)[:80]!r} is no HOST:PORT of http or https", fix=_FIX)
