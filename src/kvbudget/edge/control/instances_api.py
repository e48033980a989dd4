"""The instances for people and machines: how each stands, and taking one out of service and back."""

from collections.abc import Callable
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from kvbudget.edge.request.gateway import Gateway
from kvbudget.edge.web.answering import told_error
from kvbudget.gate.fleet.events import Drained
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.fleet.tiers import tiers_of

_DOWN: Final = "engine down"
_SETTLES: Final = (
    "the shared ledger has not answered yet, or it is new or lost its memory: it gives no room until earlier leases "
    "are over"
)


def instance_routes(gateway: Gateway, now_ns: Callable[[], int]) -> list[Route]:
    """`GET /v1/instances`, `POST /v1/instances/NAME/drain` and `/resume`."""

    async def instances(_: Request) -> Response:
        return JSONResponse({"instances": instances_of(gateway, now_ns())})

    async def drain(request: Request) -> Response:
        return drained(request, out=True)

    async def resume(request: Request) -> Response:
        return drained(request, out=False)

    def drained(request: Request, *, out: bool) -> Response:
        member = gateway.fleet.named(request.path_params["name"])
        if member is None:
            known = [one.name for one in gateway.fleet.members]
            return told_error(404, "not_found", "no instance has this name", param="name", instances=known)
        gateway.push_at(member, Drained(out))
        return JSONResponse(instance_of(gateway, member, now_ns()))

    return [
        Route("/v1/instances", instances),
        Route("/v1/instances/{name}/drain", drain, methods=["POST"]),
        Route("/v1/instances/{name}/resume", resume, methods=["POST"]),
    ]


def held_blocks(gateway: Gateway, member: Member) -> int | None:
    """The engine's own word: its usage gauge times the usable blocks (vLLM: 1 - free / (num_gpu_blocks - 1))."""
    reading = gateway.backends[member.name].facts.reading
    if reading is None or reading.usage is None:
        return None
    return round(reading.usage * member.gate.ledger.usable_blocks)


def problem_of(gateway: Gateway) -> str:
    """Why no instance takes requests; empty where one does."""
    if gateway.fleet.backend_up:
        taking = [member for member in gateway.fleet.members if not _out_of_service(member)]
        return _SETTLES if taking and all(member.gate.ledger_settles for member in taking) else ""
    told = [(member, gateway.backends[member.name].facts.problem) for member in gateway.fleet.members]
    if not told:
        return gateway.backend.facts.problem or _DOWN
    if len(told) == 1 and not told[0][0].leaving:
        return told[0][1] or _out_of_service(told[0][0]) or _DOWN
    return "; ".join(f"{member.name}: {_out_of_service(member) or why}" for member, why in told)


def _out_of_service(member: Member) -> str:
    return "leaving" if member.leaving else "drained" if member.draining else _ledger_lost(member)


def _ledger_lost(member: Member) -> str:
    return "the shared ledger does not answer" if member.gate.ledger_lost else ""


def instances_of(gateway: Gateway, now_ns: int) -> list[dict[str, object]]:
    """Every instance, as `instance_of` tells it."""
    return [instance_of(gateway, member, now_ns) for member in gateway.fleet.members]


def instance_of(gateway: Gateway, member: Member, now_ns: int) -> dict[str, object]:
    """One instance: `held` (its engine's word), `promised` (ours), `elsewhere` (what did not come through us), in
    blocks, and what decides whether it gets work."""
    gate, backend = member.gate, gateway.backends[member.name]
    facts, options = backend.facts, member.options
    return {
        "name": member.name,
        "url": backend.url,
        "engine": facts.engine or None,
        "up": gate.backend_up,
        "problem": facts.problem,
        "draining": member.draining or member.leaving,
        "leaving": member.leaving,
        "ejected": member.circuit.is_open,
        "slow_start_share": round(member.ramp.share(now_ns), 3),
        "models": sorted(member.served | options.models),
        "stands_in_for": sorted(options.fallback),
        "tier": tiers_of(gateway.fleet.members)[member.name],
        "weight": options.weight,
        "max_context": gate.max_context,
        "max_num_seqs": gate.config.max_num_seqs,
        "usable_blocks": gate.ledger.usable_blocks,
        "block_size": gate.ledger.layout.groups[0].block_size,
        "held_blocks": held_blocks(gateway, member),
        "promised_blocks": gate.promised_blocks(),
        "elsewhere_blocks": member.elsewhere_blocks,
        "taken_blocks": gate.promises.taken_blocks,
        "reservations": len(gate.ledger),
        "sequences": gate.ledger.sequences,
        "waiting": len(gate.queue),
        "read_ms_ago": (now_ns - facts.looked_ns) // 1_000_000 if facts.looked_ns else None,
    }
