"""The control plane on its own port: metrics, health, readiness and the state of the gate, for people and machines."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from kvbudget import __version__
from kvbudget.diagnose.finding import Diagnosis
from kvbudget.diagnose.verdict import CODES
from kvbudget.edge.control.demand import DemandWatch
from kvbudget.edge.control.findings import Findings
from kvbudget.edge.control.instances_api import held_blocks, instance_routes, instances_of, problem_of
from kvbudget.edge.control.past import Past
from kvbudget.edge.control.waiting import waiting_at
from kvbudget.edge.instances.vocabularies import counting_state
from kvbudget.edge.request.gateway import Gateway
from kvbudget.edge.request.reception import Reception
from kvbudget.edge.web.answering import ERROR_HANDLERS, refused, told_error
from kvbudget.edge.web.live import Live
from kvbudget.edge.web.pages import page_routes
from kvbudget.edge.web.simulation import Simulator
from kvbudget.errors import InputError
from kvbudget.gate.fleet.member import Member
from kvbudget.gate.gate import Gate
from kvbudget.gate.tenants.settings import ALL_OTHERS

# The state page is read by people; the gauges hold the totals.
_SHOWN_QUEUE = 50


Reload = Callable[[], tuple[list[str], list[str]]]
"""Takes over what the settings say now: (what changed, what needs a restart). Raises InputError."""


def admin_app(
    reception: Reception, now_ns: Callable[[], int], reload: Reload, demand: DemandWatch, past: Past
) -> Starlette:
    """The ASGI application: pages, `/metrics`, `/health`, `/ready`, `/v1/state`, `/v1/instances`, `/v1/findings`,
    `/v1/forecast`; to change: `/v1/mode`, `/v1/reload`, and the drain of an instance."""
    gateway = reception.gateway
    simulator = Simulator()
    registry = CollectorRegistry()
    findings = Findings(gateway, now_ns)
    gateway.metrics.gauges = lambda: [*gauges(reception, findings.latest), *demand.families()]
    registry.register(gateway.metrics)

    async def metrics(_: Request) -> Response:
        await findings.refresh()
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok", "version": __version__})

    async def ready(_: Request) -> Response:
        problem = "draining" if gateway.admission.draining else problem_of(gateway)
        return JSONResponse({"ready": not problem, "problem": problem}, status_code=503 if problem else 200)

    async def state(_: Request) -> Response:
        return JSONResponse(state_of(reception, now_ns()))

    async def found(_: Request) -> Response:
        await findings.refresh()
        return JSONResponse(findings.document())

    async def forecast(_: Request) -> Response:
        return JSONResponse(demand.document())

    async def mode(request: Request) -> Response:
        try:
            wanted = (await request.json())["shadow"]
        except (ValueError, KeyError, TypeError, RecursionError):
            wanted = None
        if not isinstance(wanted, bool):
            return told_error(400, "bad_value", 'send {"shadow": true} or {"shadow": false}', param="shadow")
        gateway.set_shadow(wanted)
        return JSONResponse({"shadow": gateway.shadow})

    async def take_over(_: Request) -> Response:
        try:
            changed, later = reload()
        except InputError as error:
            return refused(error)
        return JSONResponse({"changed": changed, "needs_restart": later})

    async def index(request: Request) -> Response:
        if "text/html" in request.headers.get("accept", ""):
            return RedirectResponse("/live", status_code=307)
        paths = ["/live", "/ledger", "/simulate", "/v1/state", "/v1/instances", "/v1/findings", "/v1/forecast"]
        paths += ["/v1/mode", "/v1/reload", "/metrics", "/ready", "/health"]
        return JSONResponse({"kvbudget": __version__, "paths": paths})

    return Starlette(
        routes=[
            Route("/", index),
            Route("/metrics", metrics),
            Route("/health", health),
            Route("/ready", ready),
            Route("/v1/state", state),
            Route("/v1/findings", found),
            Route("/v1/forecast", forecast),
            Route("/v1/mode", mode, methods=["POST"]),
            Route("/v1/reload", take_over, methods=["POST"]),
            *instance_routes(gateway, now_ns),
            *page_routes(simulator, "/live"),
            *Live(reception, past, now_ns, simulator).routes(),
        ],
        exception_handlers=ERROR_HANDLERS,
    )


GAUGES = {
    "kvbudget_pool_blocks": "Blocks that requests can use, the null block aside.",
    "kvbudget_reserved_blocks": (
        "Blocks promised to living requests at their worst common moment, by tenant: what the engine may come to hold, "
        "not what it holds; under policy learned, what will do but for the risk that is taken. Above the pool after it "
        "shrank, reports came later than was known, or a prompt was not shared as believed; under policy learned also "
        "when answers go on for longer than was foreseen. Then nobody is let in until it fits again."
    ),
    "kvbudget_ledger_reserved_blocks": "Blocks promised by all gates over this pool, others' by their last word.",
    "kvbudget_slice_blocks": "Blocks that this gate may promise: all but the margin, or its slice of a shared pool.",
    "kvbudget_ledger_up": "0 while the shared ledger has not answered for a lease, else 1.",
    "kvbudget_held_blocks": "Blocks in use by the engine's own word; absent if it does not tell.",
    "kvbudget_margin_blocks": "Blocks kept back on purpose.",
    "kvbudget_shared_prefix_blocks": "Blocks of prompts that several requests hold and that are charged once.",
    "kvbudget_learned_answers": (
        "Answers that the learned policy knows by now, old ones counting less; below 1, which the second reaches, "
        "trajectory decides."
    ),
    "kvbudget_learned_margin": "Standard deviations that preemptions have added to what policy learned keeps free.",
    "kvbudget_backend_up": "1 if the engine answers and makes progress, else 0.",
    "kvbudget_elsewhere_blocks": "Blocks held in the engine by what did not come through this gate, as far as is seen.",
    "kvbudget_taken_blocks": "Blocks that are not promised for now: held elsewhere, or of an engine that came back.",
    "kvbudget_sequences": "Sequences that requests let in through this gate may have running at once.",
    "kvbudget_sequence_limit": "Sequences that may run at once (max_num_seqs).",
    "kvbudget_instance_draining": "1 if an operator takes the instance out of service, or it is found no more; else 0.",
    "kvbudget_instance_ejected": "1 if failures in a row took the instance out, else 0.",
    "kvbudget_finding": "1 while what the code says holds of the instance, else 0; `kvbudget diagnose` has the codes.",
    "kvbudget_queue_requests": "Requests that wait for room.",
    "kvbudget_queue_tokens": "Tokens of the requests that wait.",
}


# What one process of several tells of the same instance, as the figure of all (`edge.workers`): `sum` of what each has
# for itself; of what all see alike, the word that warns.
MERGED = {
    "kvbudget_pool_blocks": "max",
    "kvbudget_reserved_blocks": "sum",
    "kvbudget_ledger_reserved_blocks": "max",
    "kvbudget_slice_blocks": "sum",
    "kvbudget_ledger_up": "min",
    "kvbudget_held_blocks": "max",
    "kvbudget_margin_blocks": "max",
    "kvbudget_shared_prefix_blocks": "sum",
    "kvbudget_learned_answers": "min",
    "kvbudget_learned_margin": "max",
    "kvbudget_backend_up": "min",
    "kvbudget_elsewhere_blocks": "max",
    "kvbudget_taken_blocks": "max",
    "kvbudget_sequences": "sum",
    "kvbudget_sequence_limit": "max",
    "kvbudget_instance_draining": "max",
    "kvbudget_instance_ejected": "max",
    "kvbudget_finding": "max",
    "kvbudget_queue_requests": "sum",
    "kvbudget_queue_tokens": "sum",
}


def gauges(reception: Reception, found: Mapping[str, Diagnosis] | None = None) -> Iterable[Metric]:
    """The gauges of the contract, computed at scrape time from the ledgers. `found`: by instance."""
    gateway = reception.gateway
    families = {name: GaugeMetricFamily(name, text, labels=_labels(name)) for name, text in GAUGES.items()}
    queues = [member.gate.queue for member in gateway.fleet.members]
    families["kvbudget_queue_requests"].add_metric([], sum([len(queue) for queue in queues]))
    families["kvbudget_queue_tokens"].add_metric([], sum([queue.tokens for queue in queues]))
    for instance, diagnosis in (found or {}).items():
        held = {finding.code for finding in diagnosis.findings}
        for code in CODES:
            families["kvbudget_finding"].add_metric([instance, code], float(code in held))
    for member in gateway.fleet.members:
        for name, value in _gauges_of(gateway, member).items():
            families[name].add_metric([member.name], value)
        by_tenant = member.gate.promised_by_tenant()
        for tenant in sorted(reception.identities.tenants | by_tenant.keys()):
            families["kvbudget_reserved_blocks"].add_metric([member.name, tenant], by_tenant.get(tenant, 0))
    return [family for family in families.values() if family.samples]


def _labels(name: str) -> list[str]:
    if name.startswith("kvbudget_queue_"):  # of all instances: who waits may go to any
        return []
    more = {"kvbudget_reserved_blocks": ["tenant"], "kvbudget_finding": ["code"]}
    return ["instance", *more.get(name, [])]


def _gauges_of(gateway: Gateway, member: Member) -> dict[str, float]:
    gate, ledger = member.gate, member.gate.ledger
    values: dict[str, float] = {
        "kvbudget_pool_blocks": ledger.usable_blocks,
        "kvbudget_ledger_reserved_blocks": gate.promised_blocks() + gate.promises.elsewhere_blocks,
        "kvbudget_slice_blocks": ledger.capacity_blocks,
        "kvbudget_ledger_up": float(not gate.ledger_lost),
        "kvbudget_margin_blocks": ledger.margin_blocks,
        "kvbudget_shared_prefix_blocks": ledger.shared_prefix_blocks,
        "kvbudget_learned_answers": gate.learned.lengths.answers,
        "kvbudget_learned_margin": gate.learned.margin.added,
        "kvbudget_backend_up": float(gate.backend_up),
        "kvbudget_elsewhere_blocks": member.elsewhere_blocks,
        "kvbudget_taken_blocks": gate.promises.taken_blocks,
        "kvbudget_sequences": ledger.sequences,
        "kvbudget_sequence_limit": gate.config.max_num_seqs,
        "kvbudget_instance_draining": float(member.draining or member.leaving),
        "kvbudget_instance_ejected": float(member.circuit.is_open),
    }
    held = held_blocks(gateway, member)
    if held is not None:
        values["kvbudget_held_blocks"] = held
    return values


def state_of(reception: Reception, now_ns: int) -> dict[str, object]:
    """The gate as one JSON document: pool, promises by tenant, requests, queue, backend. Blocks and tokens are ints."""
    gateway = reception.gateway
    gate, facts = gateway.gate, gateway.backend.facts
    member = gateway.fleet.named(gateway.backend.name)  # None: nobody has been found yet
    ledger = gate.ledger
    reading = facts.reading
    pool = facts.pool
    return {
        "schema": "kvbudget.state/1",
        "pool": {
            "instance": gateway.backend.name,
            "usable_blocks": ledger.usable_blocks,
            "capacity_blocks": ledger.capacity_blocks,
            "margin_blocks": ledger.margin_blocks,
            "block_size": ledger.layout.groups[0].block_size,
            "max_context": gate.max_context,
            "max_num_seqs": gate.config.max_num_seqs,
            "reserved_blocks": gate.promised_blocks(),
            "peak_sum_blocks": ledger.peak_sum_blocks,
            "free_blocks": gate.free_blocks(),
            "held_blocks": None if member is None else held_blocks(gateway, member),
        },
        "policy": gate.config.policy.value,
        "shadow": gateway.shadow,
        "counting": counting_state(reception.counter),
        "learned": _learned(gate),
        "prefix_credit": {
            "sharing": gate.config.sharing.value if gateway.prefix_credit and ledger.key_tokens else "off",
            "trusted": gate.trust.given,
            "shared_blocks": ledger.shared_prefix_blocks,
        },
        "tenants": _tenants(gate, now_ns),
        "classes": {str(priority): asdict(limits) for priority, limits in sorted(gate.config.classes.items())},
        "reserved_blocks_by_tenant": gate.promised_by_tenant(),
        "reservations": len(ledger),
        "sequences": ledger.sequences,
        "skew_steps": gate.skew_steps,
        "queue": {
            "requests": len(gate.queue),
            "tokens": gate.queue.tokens,
            "next": [] if member is None else waiting_at(member, _SHOWN_QUEUE, now_ns),
        },
        "backend": {
            "url": gateway.backend.url,
            "up": gate.backend_up,
            "problem": facts.problem,
            "read_ms_ago": (now_ns - facts.looked_ns) // 1_000_000 if facts.looked_ns else None,
            "models": facts.models,
            "num_blocks": None if pool is None else pool.num_blocks,
            "kv_tokens": None if pool is None else pool.tokens,
            "max_concurrency": None if pool is None else pool.max_concurrency,
            "running": None if reading is None else reading.running,
            "waiting": None if reading is None else reading.waiting,
            "preemptions": None if reading is None else reading.preemptions,
        },
        "instances": instances_of(gateway, now_ns),
        "counter": reception.counter.name,
        "draining": gateway.admission.draining,
    }


def _learned(gate: Gate) -> dict[str, object]:
    """`ready`: whether it decides; before that `trajectory` does."""
    learned = gate.learned
    return {
        "ready": learned.ready,
        "answers": round(learned.lengths.answers, 1),
        "margin": round(learned.margin.added, 3),
    }


def _tenants(gate: Gate, now_ns: int) -> dict[str, dict[str, object]]:
    """Limits as they are set, and what is left of them; of all others (`*`) only the limits."""
    limits = gate.fairness.limits
    told: dict[str, dict[str, object]] = {}
    for name, tenant in sorted(gate.config.tenants.items()):
        told[name] = asdict(tenant)
        if limits is None or name == ALL_OTHERS:
            continue
        if tenant.max_blocks is not None:
            told[name]["blocks_reserved"] = limits.blocks_of(name)
        left = limits.tokens_left(name, now_ns)
        if left is not None:
            told[name]["tokens_left"] = left[1]
    return told
