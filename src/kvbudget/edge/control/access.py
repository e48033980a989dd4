"""Decides who may read the admin port, and who may change anything by it.

Without a token: everybody who reaches the port may read; only a gate that listens on loopback takes changes, and only
from who is no web page (a page of another site can send simple requests to 127.0.0.1, but neither JSON nor a Host that
is ours). With a token: `Authorization: Bearer TOKEN`, or the cookie of who signed in by it (`edge.control.sign_in`),
for all but /health and /ready, which probes read, and the page to sign in. Who has only the cookie changes things from
our own pages alone.
"""

import ipaddress
import time
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kvbudget.edge.control.sessions import hashed
from kvbudget.edge.control.sign_in import PATHS, SignIn, from_own_page, is_json, to_sign_in
from kvbudget.edge.web.answering import told_error
from kvbudget.edge.web.pages import SESSION

OPEN_PATHS = frozenset({"/health", "/ready"})
OPEN_FOLDER = "/static/"  # scripts and colours, which the page to sign in needs; nothing of the gate is in them
_READING = frozenset({"GET", "HEAD", "OPTIONS"})


class AdminAccess:
    """ASGI: the app, for those who may."""

    def __init__(
        self, app: ASGIApp, host: str, token: str | None, now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._app = app
        self._loopback = is_loopback(host)
        self._sign_in = None if token is None else SignIn(hashed(token), now_ns)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 401 or 403, or lets the app answer."""
        if scope["type"] == "http":
            answer = await self._answer(Request(scope, receive))
            if answer is not None:
                await answer(scope, receive, send)
                return
            if self._sign_in is not None and scope.get(SESSION) and scope["method"] == "GET":
                await self._sign_in.serve(self._app, scope, receive, send)
                return
        await self._app(scope, receive, send)

    async def _answer(self, request: Request) -> Response | None:
        """None: the app may answer."""
        if request.url.path in OPEN_PATHS:
            return None
        if self._sign_in is None:
            problem = self._problem(request)
            return None if not problem else told_error(403, "forbidden", problem)
        return await self._of_who_signed_in(request, self._sign_in)

    async def _of_who_signed_in(self, request: Request, sign_in: SignIn) -> Response | None:
        scheme, _, sent = request.headers.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer"
        if is_bearer and sign_in.is_token(sent.strip()):
            return None
        path = request.url.path
        if path in PATHS:
            return await sign_in.answer(request)
        if path.startswith(OPEN_FOLDER) and request.method in _READING:
            return None
        if not sign_in.knows(request):
            if is_bearer and (limited := sign_in.guessed(request)) is not None:
                return limited
            if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
                return to_sign_in(request)
            told = "this port wants Authorization: Bearer TOKEN (KVBUDGET_ADMIN_TOKEN of the gate)"
            answer = told_error(401, "unauthorized", told)
            answer.headers["www-authenticate"] = "Bearer"
            return answer
        if request.method not in _READING and not (is_json(request) and from_own_page(request)):
            told = "with a cookie, changes are taken from pages of this port alone; use Authorization: Bearer TOKEN"
            return told_error(403, "forbidden", told)
        request.scope[SESSION] = True
        return None

    def _problem(self, request: Request) -> str:
        """Where no token is set."""
        if request.method in _READING:
            return ""
        if not self._loopback:
            return "changes need a token where the port is not loopback: set KVBUDGET_ADMIN_TOKEN for the gate"
        if not is_loopback(_host_in(request.headers.get("host", ""))):
            return "changes are taken under a loopback address only"
        if not is_json(request):
            return "changes are sent as content-type: application/json"
        return ""


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
