"""Decides how a person signs in at the admin port: the token is typed once, and a cookie stands for it from then on.

Its paths: `GET /login` (the page), `POST /login` and `POST /logout` (JSON), `GET /api/session` (whether it holds). The
cookie is HttpOnly and SameSite=Strict. What it does beyond reading has to come from a page of this port, by its Origin.
"""

import hmac
from collections.abc import Callable
from urllib.parse import quote, urlsplit

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from kvbudget.edge.control.session_streams import serve_while_it_holds
from kvbudget.edge.control.sessions import LONGEST_NS, Sessions, Tries, hashed
from kvbudget.edge.web.answering import as_json, body_of, told_error
from kvbudget.edge.web.pages import page_named
from kvbudget.errors import BadValueError

PATHS = frozenset({"/login", "/logout", "/api/session"})
_LARGEST = 4096


class SignIn:
    """Who is signed in, and the paths by which that comes about. `digest`: of the token."""

    def __init__(self, digest: bytes, now_ns: Callable[[], int]) -> None:
        self._digest = digest
        self._sessions = Sessions(now_ns)
        self._tries = Tries(now_ns)
        self._guesses = Tries(now_ns)  # apart: a program with an old token must keep nobody from signing in

    def is_token(self, given: str) -> bool:
        """Compared in constant time."""
        return hmac.compare_digest(hashed(given), self._digest)

    def knows(self, request: Request) -> bool:
        """Whether the browser showed a cookie that holds."""
        secret = _secret_in(request)
        return bool(secret) and self._sessions.holds(secret)

    def guessed(self, request: Request) -> Response | None:
        """It brings a token in its headers that is none. None: it may be told so; else it has to wait. Whoever brings
        the right one is never asked for, so that nobody is kept out by the guesses of others."""
        peer = _peer_of(request)
        if wait_ns := self._guesses.wait_ns(peer):
            return _too_many(wait_ns)
        self._guesses.was_wrong(peer)
        return None

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the app answer one that it knows, for as long as it does."""
        await serve_while_it_holds(app, scope, receive, send, self._sessions, _secret_in(Request(scope)))

    async def answer(self, request: Request) -> Response:
        """To one of `PATHS`."""
        path, method = request.url.path, request.method
        if path == "/api/session":
            return as_json({"signed_in": self.knows(request)})
        if method in ("GET", "HEAD") and path == "/login":
            return page_named("login.html")
        if method != "POST":
            return told_error(405, "method_not_allowed", "POST it")
        problem = "" if from_own_page(request) or "origin" not in request.headers else "it comes from another site"
        if not is_json(request):
            problem = "send it as content-type: application/json"
        if problem:
            return told_error(403, "forbidden", problem)
        return await self._sign_in(request) if path == "/login" else self._sign_out(request)

    async def _sign_in(self, request: Request) -> Response:
        peer = _peer_of(request)
        if wait_ns := self._tries.wait_ns(peer):
            return _too_many(wait_ns)
        self._tries.was_wrong(peer)  # until shown otherwise: while the body comes, others of this address come too
        token = await _token_in(request)
        if not self.is_token(token):
            return told_error(403, "forbidden", "this is not the token (KVBUDGET_ADMIN_TOKEN of the gate)")
        self._tries.was_right(peer)
        answer = as_json({"signed_in": True})
        self._set(answer, request, self._sessions.begin(), LONGEST_NS // 10**9)
        return answer

    def _sign_out(self, request: Request) -> Response:
        self._sessions.end(_secret_in(request))
        answer = as_json({"signed_in": False})
        self._set(answer, request, "", 0)
        return answer

    def _set(self, answer: Response, request: Request, secret: str, seconds: int) -> None:
        encrypted = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", ""))
        answer.set_cookie(
            _cookie_of(request), secret, max_age=seconds, path="/", secure=encrypted, httponly=True, samesite="strict"
        )


def _peer_of(request: Request) -> str:
    return "" if request.client is None else request.client.host


def _too_many(wait_ns: int) -> Response:
    seconds = -(-wait_ns // 10**9)
    answer = told_error(429, "rate_limit_exceeded", f"too many wrong tokens; try again in {seconds} s")
    answer.headers["retry-after"] = str(seconds)
    return answer


def to_sign_in(request: Request) -> Response:
    """A person who opens a page is led to where to sign in, and back from there."""
    wanted = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    return RedirectResponse(f"/login?next={quote(wanted, safe='')}", status_code=303)


def is_json(request: Request) -> bool:
    """Whether it is sent as no page of another site can send it."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def from_own_page(request: Request) -> bool:
    """Whether a browser says that it comes from a page of this very port; the proxy before us has to pass Host on, or
    the browser has to send Sec-Fetch-Site, as it does to https and to this machine."""
    if request.headers.get("sec-fetch-site") == "same-origin":
        return True
    origin = urlsplit(request.headers.get("origin", ""))
    return bool(origin.netloc) and origin.netloc == request.headers.get("host", "")


def _secret_in(request: Request) -> str:
    return request.cookies.get(_cookie_of(request), "")


def _cookie_of(request: Request) -> str:
    """Cookies know no ports, so two gates of one machine need two names."""
    server = request.scope.get("server")
    return f"kvbudget_session_{server[1] if server else 0}"


async def _token_in(request: Request) -> str:
    try:
        told = orjson.loads(await body_of(request, _LARGEST, "the token"))
    except (orjson.JSONDecodeError, BadValueError):
        return ""
    token = told.get("token") if isinstance(told, dict) else None
    return token.strip() if isinstance(token, str) else ""
