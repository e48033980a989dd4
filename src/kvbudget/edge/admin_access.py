"""Decides who may read the admin port, and who may change anything by it.

Without a token: everybody who reaches the port may read; only a gate that listens on loopback takes changes, and only
from who is no web page (a page of another site can send simple requests to 127.0.0.1, but neither JSON nor a Host that
is ours). With a token: `Authorization: Bearer TOKEN` for all but /health and /ready, which probes read.
"""

import hashlib
import hmac
import ipaddress

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/ready"})
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class AdminAccess:
    """ASGI: the app, for those who may."""

    def __init__(self, app: ASGIApp, host: str, token: str | None) -> None:
        self._app = app
        self._loopback = is_loopback(host)
        self._digest = None if token is None else hashlib.sha256(token.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 401 or 403, or lets the app answer."""
        if scope["type"] == "http":
            problem = self._problem(Request(scope))
            if problem is not None:
                status, told = problem
                headers = {"www-authenticate": "Bearer"} if status == 401 else {}
                answer = JSONResponse({"error": told}, status_code=status, headers=headers)
                await answer(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _problem(self, request: Request) -> tuple[int, str] | None:
        if request.url.path in OPEN_PATHS:
            return None
        if self._digest is not None:
            scheme, _, sent = request.headers.get("authorization", "").partition(" ")
            given = hashlib.sha256(sent.strip().encode()).digest()
            if scheme.lower() != "bearer" or not hmac.compare_digest(given, self._digest):
                return 401, "this port wants Authorization: Bearer TOKEN (KVBUDGET_ADMIN_TOKEN of the gate)"
            return None
        if request.method in _READING:
            return None
        if not self._loopback:
            return 403, "changes need a token where the port is not loopback: set KVBUDGET_ADMIN_TOKEN for the gate"
        if not is_loopback(_host_in(request.headers.get("host", ""))):
            return 403, "changes are taken under a loopback address only"
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return 403, "changes are sent as content-type: application/json"
        return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach that address."""
    if host == "localhost" or host.startswith("unix:"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host_in(header: str) -> str:
    """`[::1]:8801` and `127.0.0.1:8801` without the port."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
