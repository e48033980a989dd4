"""What the live page shows of a running gate, as it is now and over the last minutes; nothing here changes anything.

Blocks are read off the ledgers, reasons off the gate; nothing is computed anew. The past is the gate's own
(`edge.control.past`). "What if" is answered by the simulator, with the requests of the last minutes.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from heapq import nlargest
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from kvbudget.edge.control.instances_api import instances_of, problem_of
from kvbudget.edge.control.past import Past
from kvbudget.edge.control.waiting import waiting_at
from kvbudget.edge.request.reception import Reception
from kvbudget.edge.web.answering import answered, told_error
from kvbudget.edge.web.simulation import MOST_REQUESTS, Simulator, changed_flags, what_if_flags
from kvbudget.errors import BadValueError
from kvbudget.gate.fleet.member import Member
from kvbudget.pool.ledger import Reservation

SCHEMA = "kvbudget.live/1"
_EVERY_S = 1.0
_SHOWN_REQUESTS = 200  # of an instance; the largest
_SHOWN_QUEUE = 50
_MOST_WATCHERS = 16
_LEAST_ROWS = 10  # requests, before "what if" means anything
_NO_STORE = {"cache-control": "no-store", "x-content-type-options": "nosniff"}


class Live:
    """The page's three addresses. Looks once a second for whoever watches."""

    def __init__(self, reception: Reception, past: Past, now_ns: Callable[[], int], simulator: Simulator) -> None:
        self._reception = reception
        self._past = past
        self._now_ns = now_ns
        self._simulator = simulator
        self._watchers = 0

    def routes(self) -> list[Route]:
        """`/api/live` once, `/api/live/stream` as server-sent events, `/api/whatif`."""

        async def once(_: Request) -> Response:
            return Response(orjson.dumps(self.snapshot()), media_type="application/json", headers=_NO_STORE)

        async def stream(_: Request) -> Response:
            if self._watchers >= _MOST_WATCHERS:
                told = f"{_MOST_WATCHERS} watch already"
                answer = told_error(503, "too_many_watchers", told, fix="close another page")
                answer.headers["retry-after"] = "10"
                return answer
            return StreamingResponse(self._events(), media_type="text/event-stream", headers=_NO_STORE)

        async def what_if(request: Request) -> Response:
            return await answered(request, self._what_if)

        return [
            Route("/api/live", once),
            Route("/api/live/stream", stream),
            Route("/api/whatif", what_if, methods=["POST"]),
        ]

    def snapshot(self) -> dict[str, Any]:
        """How it stands now. Blocks and tokens are whole numbers, times are milliseconds."""
        gateway, now_ns = self._reception.gateway, self._now_ns()
        members = gateway.fleet.members
        stories = {story["name"]: story for story in instances_of(gateway, now_ns)}
        return {
            "schema": SCHEMA,
            "at_ms": now_ns // 1_000_000,
            "policy": gateway.gate.config.policy.value,
            "shadow": gateway.shadow,
            "draining": gateway.admission.draining,
            "problem": problem_of(gateway),
            "instances": [
                {**stories[member.name], **self._past.point(member, now_ns)._asdict(), **_requests(member, now_ns)}
                for member in members
            ],
            "queue": _queue(members, now_ns),
            "tenants": _tenants(members),
            "refusals": {
                reason: count for reason, count in dict(self._reception.gateway.metrics.refusals).items() if count
            },
            "outcomes": {str(outcome): count for outcome, count in gateway.metrics.outcomes.items() if count},
        }

    async def _what_if(self, wanted: dict[str, Any]) -> dict[str, Any]:
        """`wanted`: max_num_seqs, max_context, or both, as numbers or as `4k`. The last minutes of traffic, simulated
        with today's limits and with these. Raises BadValueError."""
        gateway = self._reception.gateway
        rows = self._past.recent.rows(self._now_ns(), MOST_REQUESTS)
        if len(rows) < _LEAST_ROWS:
            raise BadValueError(
                f"what if: {len(rows)} requests ended in the last quarter of an hour, {_LEAST_ROWS} are needed",
                fix="ask again when there was traffic",
            )
        trace = b"".join(orjson.dumps(row) + b"\n" for row in rows)
        flags = what_if_flags(gateway.gate)
        changed = changed_flags(gateway.gate, wanted)
        before = await self._simulator.run(flags, trace)
        after = await self._simulator.run([*flags, *changed], trace)
        return {
            "schema": "kvbudget.whatif/1",
            "requests": len(rows),
            "now": before["runs"][0],
            "then": after["runs"][0],
        }

    async def _events(self) -> AsyncIterator[bytes]:
        """First the past, then one look a second. Whoever reconnects gets the past again, so nothing is missing."""
        self._watchers += 1
        try:
            self._past.look()
            yield b"retry: 2000\nevent: past\ndata: " + orjson.dumps(self._past.points()) + b"\n\n"
            while True:
                yield b"event: now\ndata: " + orjson.dumps(self.snapshot()) + b"\n\n"
                await asyncio.sleep(_EVERY_S)
                self._past.look()
        finally:
            self._watchers -= 1


def _requests(member: Member, now_ns: int) -> dict[str, object]:
    """Who holds what, the largest first, and for how long still, by what the gate expects."""
    gate = member.gate
    largest = nlargest(_SHOWN_REQUESTS, gate.ledger, key=lambda living: living.net_blocks)
    return {
        "requests": [_request(living, gate.expectation.remaining_ns(living, now_ns), now_ns) for living in largest],
        "requests_in_all": len(gate.ledger),
        "margin_blocks": gate.ledger.margin_blocks,
        "peak_sum_blocks": gate.ledger.peak_sum_blocks,
    }


def _request(living: Reservation, left_ns: int, now_ns: int) -> dict[str, object]:
    return {
        "tenant": living.tenant,
        "blocks": living.net_blocks,
        "prompt_tokens": sum(living.footprint.prompts),
        "max_new_tokens": living.footprint.max_new_tokens,
        "seen_tokens": living.seen_tokens,
        "is_watched": living.paced,  # else nothing of its answer is seen before it ends
        "age_ms": (now_ns - living.made_ns) // 1_000_000,
        "left_ms": left_ns // 1_000_000,
    }


def _queue(members: list[Member], now_ns: int) -> dict[str, object]:
    """Of all instances together; `next` are the first of each, whoever waited longest first."""
    shown = [one for member in members for one in waiting_at(member, _SHOWN_QUEUE, now_ns)]
    if len(members) > 1:
        shown.sort(key=_its_turn)
    return {
        "requests": sum([len(member.gate.queue) for member in members]),
        "tokens": sum([member.gate.queue.tokens for member in members]),
        "next": shown[:_SHOWN_QUEUE],
    }


def _its_turn(told: dict[str, Any]) -> tuple[int, int]:
    return told["priority"], -told["waited_ms"]


def _tenants(members: tuple[Member, ...] | list[Member]) -> list[dict[str, object]]:
    """Blocks promised to each and requests of each that wait, over all instances; the largest first."""
    promised: dict[str, int] = {}
    waiting: dict[str, int] = {}
    for member in members:
        for tenant, blocks in member.gate.promised_by_tenant().items():
            promised[tenant] = promised.get(tenant, 0) + blocks
        for one in member.gate.queue:
            waiting[one.arrived.tenant] = waiting.get(one.arrived.tenant, 0) + 1
    names = sorted(promised.keys() | waiting.keys(), key=lambda name: (-promised.get(name, 0), name))
    return [
        {"tenant": name, "promised_blocks": promised.get(name, 0), "waiting": waiting.get(name, 0)}
        for name in names[:_SHOWN_QUEUE]
    ]
