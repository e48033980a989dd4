"""Decides how the pages' API reads a JSON body and answers: bounded, and an error always says what to do."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from kvbudget.edge.web.simulation import LARGEST_TRACE, BusyError
from kvbudget.errors import BadValueError, InputError, KvbudgetError

# Only what comes from this port, and no script inside a page; a page of another site cannot frame it.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_LARGEST = LARGEST_TRACE + 65536
_INVALID: Final = "invalid_request_error"
_UNAVAILABLE: Final = "service_unavailable_error"
_SERVER: Final = "server_error"
# Code -> type, in the words of the data plane's table (`edge.openai.errors`). Docs and tests read it.
ADMIN_CODES: Final[dict[str, str]] = {
    # what was asked for
    "not_found": _INVALID,
    "method_not_allowed": _INVALID,
    "bad_input": _INVALID,
    "bad_value": _INVALID,
    "bad_config": _INVALID,
    "unsupported": _INVALID,
    "body_too_large": _INVALID,
    # who asked
    "unauthorized": "authentication_error",
    "forbidden": "permission_error",
    "rate_limit_exceeded": "rate_limit_error",
    # what cannot be had just now
    "busy": _UNAVAILABLE,
    "too_many_watchers": _UNAVAILABLE,
    "no_worker": _UNAVAILABLE,
    "worker_gone": _SERVER,
    "internal_error": _SERVER,
}
_BY_STATUS: Final = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
_Answering = Coroutine[Any, Any, Mapping[str, Any]]


async def answered(request: Request, answer: Callable[[dict[str, Any]], _Answering]) -> Response:
    """What `answer` makes of the JSON object in the body."""
    try:
        body = await body_of(request, _LARGEST, "the body")
        try:
            wanted = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise BadValueError(f"the body is no JSON: {error}", fix="send one JSON object") from None
        if not isinstance(wanted, dict):
            raise BadValueError("the body is no JSON object", fix="send one JSON object")
        return as_json(await _while_there(request, answer(wanted)))
    except _GoneError:
        return Response(status_code=499)  # nobody reads it
    except BusyError as error:
        return refused(error, 429)
    except InputError as error:
        return refused(error)


class _GoneError(Exception):
    """Who asked hung up."""


async def _while_there(request: Request, answer: _Answering) -> Mapping[str, Any]:
    """The answer, given up as soon as who asked hangs up: a page that is closed must not keep others waiting."""
    working, gone = asyncio.create_task(answer), asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise _GoneError
        return working.result()
    finally:
        for task in (working, gone):
            task.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)  # what it started is ended before we are


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def body_of(request: Request, most: int, what: str) -> bytes:
    """The body. Raises BadValueError for more than `most` bytes."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise BadValueError(f"{what}: more than {most:,} bytes", fix="send less")
        parts.append(part)
    return b"".join(parts)


def refused(error: KvbudgetError, status: int = 400) -> Response:
    """What is wrong and what to do."""
    return told_error(status, error.code, error.message, fix=error.fix)


def told_error(
    status: int, code: str, message: str, *, fix: str = "", param: str | None = None, **beside: object
) -> Response:
    """One error in the contract's form, with `fix` where there is something to do. `beside`: members next to it."""
    error = {"message": message, "type": ADMIN_CODES[code], "param": param, "code": code}
    return as_json({"error": {**error, "fix": fix} if fix else error, **beside}, status)


async def _of_the_framework(request: Request, error: Exception) -> Response:
    """What no route has answered: an unknown path, another method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for that
    code = _BY_STATUS.get(error.status_code, "bad_input")
    told, fix = f"{HTTPStatus(error.status_code).phrase}: {request.method} {request.url.path[:200]}", ""
    allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))  # a set, in no order
    if code == "not_found":
        fix = "GET / tells the paths of this port"
    elif allowed:
        fix = f"it takes {allowed}"
    answer = told_error(error.status_code, code, told, fix=fix)
    if allowed:
        answer.headers["allow"] = allowed
    return answer


async def _of_a_bug(request: Request, error: Exception) -> Response:
    return told_error(500, "internal_error", f"{request.url.path[:200]} failed; the log of this process says how")


ERROR_HANDLERS: Final[Mapping[Any, Any]] = {HTTPException: _of_the_framework, Exception: _of_a_bug}
"""For every Starlette application of the admin port: errors that no code of ours answers, in the same form."""


def as_json(document: object, status: int = 200) -> Response:
    """One JSON document."""
    return Response(json_bytes(document), status_code=status, headers=HEADERS, media_type="application/json")


def json_bytes(document: object, *, indented: bool = False) -> bytes:
    """The same as text. A state of the ledger may come to more bytes than 64 bits count, which orjson refuses."""
    try:
        return orjson.dumps(document, option=orjson.OPT_INDENT_2 if indented else 0)
    except orjson.JSONEncodeError:
        return json.dumps(document, indent=2 if indented else None, allow_nan=False).encode()
