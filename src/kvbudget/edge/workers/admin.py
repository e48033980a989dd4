"""The one admin port of several workers: what all of them say together, what is told to all, and one worker's pages."""

import asyncio
import html
from collections.abc import Callable
from typing import Any, Final

import orjson
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from kvbudget import __version__
from kvbudget.edge.web.answering import ERROR_HANDLERS, body_of, refused, told_error
from kvbudget.edge.web.pages import which_pages
from kvbudget.edge.workers import states
from kvbudget.edge.workers.asking import Asking, Said
from kvbudget.edge.workers.crew import Worker
from kvbudget.edge.workers.demand import WorkersDemand
from kvbudget.edge.workers.expositions import exposition, merged, worker_families
from kvbudget.edge.workers.passing_on import Gone, passed_on
from kvbudget.errors import BadValueError, InputError

COOKIE: Final = "kvbudget_worker"
_LARGEST_BODY: Final = 64 * 1024
_SET_BY_HAND: Final = 1000  # of what is told again to a worker that was started anew


class WorkersAdmin:
    """`app`: the ASGI application. `tell_again`: to be called when a worker begins to serve."""

    def __init__(
        self,
        asking: Asking,
        demand: WorkersDemand,
        check: Callable[[], object],
        ledger_calls: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`check`: raises InputError if the settings as they are now could not be taken over. `ledger_calls`: of the
        ledger in this process, if it is here."""
        self._asking = asking
        self._crew = asking.crew
        self._demand = demand
        self._check = check
        self._ledger_calls = ledger_calls
        self._by_hand: dict[str, tuple[str, bytes]] = {}  # what was switched: the last word for each thing
        self.app = Starlette(
            routes=[
                Route("/metrics", self._metrics),
                Route("/health", self._health),
                Route("/ready", self._ready),
                Route("/v1/state", self._state),
                Route("/v1/instances", self._instances),
                Route("/v1/findings", self._findings),
                Route("/v1/forecast", self._forecast),
                Route("/v1/mode", self._switch, methods=["POST"]),
                Route("/v1/reload", self._reload, methods=["POST"]),
                Route("/v1/instances/{name}/{what:path}", self._switch, methods=["POST"]),
                Route("/live", self._live),
                which_pages("/live"),  # a worker does not know who has signed in
                Route("/{rest:path}", self._pass_on, methods=["GET", "POST"]),
            ],
            exception_handlers=ERROR_HANDLERS,
        )

    async def tell_again(self, worker: Worker) -> None:
        """What was switched by hand holds for a worker that takes a dead one's place."""
        for target, body in list(self._by_hand.values()):
            await self._asking.post_to(worker, target, body)

    # All together

    async def _metrics(self, _: Request) -> Response:
        said = [one for one in await self._asking.get("/metrics") if one.status == 200]
        stands = [(one.number, one.is_up, one.restarts) for one in self._crew.workers]
        own = [*self._demand.families(), *worker_families(stands, self._ledger_calls())]

        def together() -> bytes:
            return exposition([*merged([one.body.decode() for one in said]), *own])

        return Response(await asyncio.to_thread(together), media_type=CONTENT_TYPE_LATEST)

    async def _health(self, _: Request) -> Response:
        up = any(one.is_up for one in self._crew.workers)
        told = {"status": "ok" if up else "no worker serves", "version": __version__, "workers": self._stands()}
        return JSONResponse(told, status_code=200 if up else 503)

    async def _ready(self, _: Request) -> Response:
        said = await self._asking.get("/ready")
        problems = [one.document().get("problem") or f"worker {one.worker}" for one in said if one.status != 200]
        problem = str(problems[0]) if problems else "" if said else "no worker serves"
        told = {"ready": not problem, "problem": problem, "workers": self._stands()}
        return JSONResponse(told, status_code=503 if problem else 200)

    async def _state(self, _: Request) -> Response:
        each = await self._documents("/v1/state")
        return _nobody() if not each else JSONResponse({**states.state(each), "processes": self._stands()})

    async def _instances(self, _: Request) -> Response:
        each = await self._documents("/v1/instances")
        if not each:
            return _nobody()
        return JSONResponse({"instances": states.instances([one["instances"] for _, one in each])})

    async def _findings(self, _: Request) -> Response:
        each = await self._documents("/v1/findings")
        return _nobody() if not each else JSONResponse(states.findings(each))

    async def _forecast(self, _: Request) -> Response:
        await self._demand.refresh()
        return JSONResponse(self._demand.document())

    # To all

    async def _switch(self, request: Request) -> Response:
        try:
            body = await body_of(request, _LARGEST_BODY, "the body")
        except BadValueError:
            return told_error(413, "body_too_large", f"the body: more than {_LARGEST_BODY} bytes", fix="send less")
        target = request.scope.get("raw_path", request.url.path.encode()).decode("latin-1")
        said = await self._asking.post(target, body)
        if said and all(one.status == 200 for one in said):
            thing = target.rpartition("/")[0] if target.endswith(("/drain", "/resume")) else target
            if len(self._by_hand) < _SET_BY_HAND or thing in self._by_hand:
                self._by_hand[thing] = target, body
        return _together(said)

    async def _reload(self, _: Request) -> Response:
        try:
            await asyncio.to_thread(self._check)  # before any of them takes it
        except InputError as error:
            return refused(error)
        said = await self._asking.post("/v1/reload", b"{}")
        own = [one.document() for one in said]
        names = {member: _union(own, member) for member in ("changed", "needs_restart")}
        return _together(said, **names)

    # One

    async def _live(self, request: Request) -> Response:
        """The page of one worker, with a word about which it is, and ways to the others."""
        answer = await self._pass_on(request)
        if answer.status_code != 200 or not isinstance(answer, StreamingResponse):
            return answer
        page = b"".join([part if isinstance(part, bytes) else b"" async for part in answer.body_iterator])
        told = self._which(int(answer.headers["x-kvbudget-worker"])).encode()
        whole = Response(page.replace(b"<main", told + b"\n<main", 1), media_type="text/html")
        whole.raw_headers += [(name, value) for name, value in answer.raw_headers if name != b"content-type"]
        return whole

    async def _pass_on(self, request: Request) -> Response:
        worker = self._chosen(request)
        if worker is None:
            return _nobody()
        try:
            answer = await passed_on(request, self._asking.path(worker.number))
        except Gone as error:
            return told_error(502, "worker_gone", f"worker {worker.number} does not answer: {error}")
        answer.headers["x-kvbudget-worker"] = str(worker.number)
        if "worker" in request.query_params:  # what the page asks for next is of the same one
            answer.set_cookie(COOKIE, str(worker.number), samesite="strict", httponly=True)
        return answer

    def _chosen(self, request: Request) -> Worker | None:
        """The one that was asked for by `?worker=` or on the page before, else the first that serves."""
        wanted = request.query_params.get("worker", request.cookies.get(COOKIE, ""))
        up = [one for one in self._crew.workers if one.is_up]
        return next((one for one in up if str(one.number) == wanted), up[0] if up else None)

    def _which(self, number: int) -> str:
        others = [
            f'<a href="/live?worker={one.number}">worker {one.number}</a>'
            for one in self._crew.workers
            if one.number != number and one.is_up
        ]
        told = f"Worker {number} of {len(self._crew.workers)}: what came to this process. Others: "
        return f'<p class="note" id="worker">{html.escape(told)}{", ".join(others) or "none serves"}</p>'

    async def _documents(self, target: str) -> list[tuple[int, dict[str, Any]]]:
        said = await self._asking.get(target)
        return [(one.worker, document) for one in said if one.status == 200 and (document := one.document())]

    def _stands(self) -> list[dict[str, object]]:
        return [
            {"worker": one.number, "up": one.is_up, "pid": one.pid if one.process is not None else None,
             "restarts": one.restarts}
            for one in self._crew.workers
        ]  # fmt: skip


def _together(said: list[Said], **more: object) -> Response:
    """What the first that refuses says, else the first; and each one's own word beside."""
    if not said:
        return _nobody()
    worst = max(said, key=lambda one: (one.status != 200, -one.worker))
    each = [{"worker": one.worker, "status": one.status or None, "answer": one.document()} for one in said]
    status = worst.status or 502
    told = {**worst.document(), **(more if status == 200 else {}), "workers": each}
    return Response(orjson.dumps(told), status_code=status, media_type="application/json")


def _nobody() -> Response:
    return told_error(503, "no_worker", "no worker serves", fix="try again: a dead worker is started anew")


def _union(documents: list[dict[str, Any]], member: str) -> list[str]:
    return list(dict.fromkeys(name for one in documents for name in one.get(member) or ()))
