"""Decides how the pages' API reads a JSON body and answers: bounded, and an error always says what to do."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import orjson
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
    return as_json({"error": {"message": error.message, "fix": error.fix, "code": error.code}}, status)


def as_json(document: object, status: int = 200) -> Response:
    """One JSON document."""
    return Response(json_bytes(document), status_code=status, headers=HEADERS, media_type="application/json")


def json_bytes(document: object, *, indented: bool = False) -> bytes:
    """The same as text. A state of the ledger may come to more bytes than 64 bits count, which orjson refuses."""
    try:
        return orjson.dumps(document, option=orjson.OPT_INDENT_2 if indented else 0)
    except orjson.JSONEncodeError:
        return json.dumps(document, indent=2 if indented else None, allow_nan=False).encode()
