"""Decides which address of the pages answers what: static files, the numbers of the ledger, and its exports.

Nothing here changes anything; whoever may reach the port may read. A page loads only what comes from here.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from kvbudget.edge.web import catalogue
from kvbudget.edge.web.answering import HEADERS, answered, as_json, body_of, json_bytes, refused, told_error
from kvbudget.edge.web.asked import DEFAULTS, PRECISIONS, Asked, asked_in, has_card, in_words_of_the_page, plan_asked
from kvbudget.edge.web.budget_export import budget_toml, config_text
from kvbudget.edge.web.examples import examples_told
from kvbudget.edge.web.simulation import Simulator
from kvbudget.errors import BadConfigError, BadValueError, InputError
from kvbudget.planner.hardware.gpus import GPUS
from kvbudget.planner.request import Plan
from kvbudget.report.ledger import ledger_document, sized
from kvbudget.report.markdown import markdown_report
from kvbudget.report.png import png_report
from kvbudget.report.priced import Priced, priced, priced_section
from kvbudget.simulate.scenarios import SCENARIOS

LARGEST_CONFIG = 1024 * 1024
SESSION = "kvbudget.session"  # in the scope of who signed in by a cookie
_PAGES = {"/ledger": "ledger.html", "/live": "live.html", "/simulate": "simulate.html"}
_ALONE = ("/ledger", "/simulate")  # those that need no gate
_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def page_routes(simulator: Simulator, *more: str) -> list[BaseRoute]:
    """`/ledger`, `/static/NAME`, `/api/plan`, `/api/catalogue`, `/api/export/NAME`, `/simulate`, `/api/simulate`,
    `/api/scenarios`, `/api/pages`; `more`: pages of a running gate."""
    shown = (*_ALONE, *more)

    async def simulate(request: Request) -> Response:
        return await answered(request, simulator.asked)

    return [
        *[Route(path, _page(_PAGES[path])) for path in shown],
        Route("/api/simulate", simulate, methods=["POST"]),
        Route("/api/scenarios", _scenarios),
        which_pages(*more),
        Route("/static/{name}", _static),
        Route("/api/plan", _plan, methods=["GET", "POST"]),
        Route("/api/catalogue", _catalogue),
        Route("/api/export/{name}", _export, methods=["GET", "POST"]),
    ]


def which_pages(*more: str) -> Route:
    """`/api/pages`: which there are on this port, and whether who asks has signed in to it."""

    async def pages(request: Request) -> Response:
        return as_json({"pages": (*_ALONE, *more), "session": bool(request.scope.get(SESSION))})

    return Route("/api/pages", pages)


async def to_ledger(_: Request) -> Response:
    """The page that a person who opens the port sees first."""
    return RedirectResponse("/ledger", status_code=307)


def _page(name: str) -> Callable[[Request], Any]:
    async def page(_: Request) -> Response:
        return page_named(name)

    return page


async def _static(request: Request) -> Response:
    return page_named(request.path_params["name"])


def page_named(name: str) -> Response:
    """A file of ours, or 404."""
    static = {one.name: one for one in (files("kvbudget.edge.web") / "static").iterdir()}
    kind = _TYPES.get(name.rpartition(".")[2])
    if name not in static or kind is None:
        return told_error(404, "not_found", "no such file", param="name")
    return Response(static[name].read_bytes(), headers=HEADERS, media_type=kind)


async def _catalogue(_: Request) -> Response:
    return as_json(
        {
            "schema": "kvbudget.catalogue/1",
            "defaults": DEFAULTS,
            "models": catalogue.names(),
            "gpus": [{"key": key, "name": gpu.name, **sized(gpu.memory_bytes)} for key, gpu in GPUS.items()],
            "precisions": [{"name": name, "note": one.note} for name, one in PRECISIONS.items()],
            "examples": examples_told(),
        }
    )


async def _scenarios(_: Request) -> Response:
    return as_json({"scenarios": [{"name": one.name, "summary": one.summary} for one in SCENARIOS.values()]})


async def _plan(request: Request) -> Response:
    try:
        state = await _state(request)
        document = await asyncio.to_thread(_document, state)
    except InputError as error:
        return refused(in_words_of_the_page(error))
    return as_json(document)


async def _export(request: Request) -> Response:
    """`plan.json` (the ledger), `plan.md`, `plan.png`; `kvbudget.toml`, and the `config.json` that it is of."""
    writers: Mapping[str, tuple[Callable[[_State], bytes], str]] = {
        "plan.json": (lambda state: json_bytes(_document(state), indented=True), "application/json"),
        "plan.md": (_markdown, "text/markdown; charset=utf-8"),
        "plan.png": (lambda state: png_report(state.plan), "image/png"),
        "kvbudget.toml": (lambda state: budget_toml(state.asked), "application/toml"),
        "config.json": (lambda state: config_text(state.asked), "application/json"),
    }
    name = request.path_params["name"]
    if name not in writers:
        return told_error(404, "not_found", "no such export", fix=f"one of {', '.join(writers)}", param="name")
    write, kind = writers[name]
    try:
        content = await asyncio.to_thread(write, await _state(request))
    except InputError as error:
        return refused(in_words_of_the_page(error))
    return Response(
        content, media_type=kind, headers={**HEADERS, "content-disposition": f'attachment; filename="{name}"'}
    )


@dataclass(frozen=True, slots=True)
class _State:
    asked: Asked

    @property
    def plan(self) -> Plan:
        return plan_asked(self.asked)


def _document(state: _State) -> Mapping[str, object]:
    asked = state.asked
    plan = state.plan
    document = ledger_document(
        plan,
        asked.concurrency,
        target=asked.target if has_card(asked) else None,
        sized_to_need=not has_card(asked),
        with_block=lambda block: plan_asked(asked.with_block(block)),
        cost=_cost(asked, plan),
    )
    return {**document, "fields": asked.fields}


def _cost(asked: Asked, plan: Plan) -> Priced | None:
    return None if asked.price_per_gpu_hour is None else priced(plan, asked.price_per_gpu_hour)


def _markdown(state: _State) -> bytes:
    plan = state.plan
    cost = _cost(state.asked, plan)
    return markdown_report(plan, () if cost is None else (priced_section(cost),)).encode()


async def _state(request: Request) -> _State:
    """Fields from the address; a config.json in the body of a POST."""
    query: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in query:
            raise BadValueError(f"{name[:40]}: given twice", fix="give each field once")
        query[name] = value
    config = await _config(request) if request.method == "POST" else None
    return _State(asked_in(query, config))


async def _config(request: Request) -> Mapping[str, object]:
    body = await body_of(request, LARGEST_CONFIG, "config.json")
    try:
        config = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadConfigError(f"config.json: no JSON: {error}", fix="paste the whole file") from None
    if not isinstance(config, dict):
        raise BadConfigError("config.json: no JSON object", fix="paste the whole file, braces and all")
    return config
