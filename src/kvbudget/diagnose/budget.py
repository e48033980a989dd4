"""Decides whether promises are full while blocks are free: the gate's, or an engine's that reserves before it uses."""

from kvbudget.diagnose.compute import prefill_is_the_limit
from kvbudget.diagnose.finding import Action, Cost, Finding, Lever, Severity, Sure
from kvbudget.diagnose.fullness import NEARLY, is_full
from kvbudget.diagnose.sequences import RESERVING
from kvbudget.diagnose.symptoms import Symptoms, number
from kvbudget.engines.window import GateWindow

_WAITING = 2
_HEAD_TOO_LARGE = 0.70  # of the pool: what is left may be too little for the one that is next
_PLACES = 3  # that wait, before it is no matter of a moment
_BYPASS = 0.02  # of the pool: less than this may be block tables and late gauges
_BYPASS_BLOCKS = 4
_ROOM_REFUSALS = ("pool_full", "queue_full", "deadline", "tenant_share")


def budget_full(s: Symptoms) -> Finding | None:
    """An engine that reserves for what requests may generate has a queue, and blocks that nobody uses."""
    sure = _reserves_too_much(s)
    if sure is None:
        return None
    last, ratio = s.last, s.figure("new_token_ratio")
    engine = s.window.engine
    knob = {
        "sglang": "SGLang: lower --schedule-conservativeness to 0.3 (its own guide: usage below 0.9 with a queue)",
        "tgi": "TGI: ask for smaller max_new_tokens; --max-batch-total-tokens is charged for all that may come",
        "vllm": "vLLM: a smaller --watermark, which keeps blocks free at admission",
        "trtllm": "TensorRT-LLM: capacity_scheduler_policy MAX_UTILIZATION instead of GUARANTEED_NO_EVICT",
    }.get(engine, "let the engine reserve less for answers that end early")
    of = "reserved" if engine == "tgi" else "in use"
    words = (
        f"the budget is full, not the pool: {last.for_room:,} wait while {(last.usage or 0) * 100:.0f} % of it is {of}"
    )
    return Finding(
        code="budget_full",
        severity=Severity.CRITICAL,
        message=f"{words}; {engine} keeps blocks back for what requests may generate, and they stop earlier",
        evidence=s.evidence(
            waiting_for_room_requests=last.for_room,
            new_token_ratio=ratio,
            max_tokens_mean_tokens=None if s.window.max_tokens is None else number(s.window.max_tokens.mean),
            output_mean_tokens=s.output_mean,
            preemptions=s.grew("preemptions"),
        ),
        sure=sure,
        refuted_by="max_tokens that are used up (finished_reason=length), or as many running as the engine's limit",
        actions=(
            Action(
                "ask for max_tokens near what answers use",
                Cost.FREE,
                "more are let in; usage rises towards 0.9",
            ),
            Action(knob, Cost.FREE, "the queue shrinks; watch retractions or preemptions, they must stay near 0"),
            Action("one more replica behind one gate", Cost.MONEY, "twice the budget", Lever.REPLICA),
        ),
    )


def _reserves_too_much(s: Symptoms) -> Sure | None:
    last = s.last
    if _held_back(s):
        return Sure("low", "by elimination: max_num_seqs is told and not reached, the steps are not full of prompts")
    if s.window.engine not in RESERVING or not last.for_room or last.usage is None or s.happened("preemptions"):
        return None
    if s.max_num_seqs is not None and (last.running or 0) >= s.max_num_seqs:
        return None
    if s.window.engine == "tgi":
        if last.usage < NEARLY:
            return None
        return Sure("high", "its gauge is of reservations, and they are at the limit")
    if last.usage >= NEARLY or not last.running or last.for_room < _WAITING or is_full(s) is not None:
        return None
    if prefill_is_the_limit(s):
        return None
    always = s.several and s.always(lambda look: bool(look.for_room))
    return Sure("medium" if always else "low", "a queue at usage below 0.9, in an engine that reserves for answers")


def _held_back(s: Symptoms) -> bool:
    """An engine whose limits are told and not reached has a queue and free blocks: it keeps some back (--watermark)."""
    if s.window.engine != "vllm" or s.max_num_seqs is None or not s.pinned or (s.usage_high or 1) >= NEARLY:
        return False
    if (s.running_high or 0) >= s.max_num_seqs or s.happened("preemptions") or is_full(s) is not None:
        return False
    waits = s.always(lambda look: (look.for_room or 0) >= _WAITING)
    return waits and s.happened("generation_tokens") > s.happened("prompt_tokens")


def gate_budget_full(gate: GateWindow) -> Finding | None:
    """Our own promises are full while the engine has free blocks."""
    pool, promised = number(gate.pool_blocks), number(gate.promised_blocks)
    queue, refused = number(gate.queue_requests) or 0, _refused(gate)
    if not pool or promised is None or not (queue or refused):
        return None
    taken = (promised + (number(gate.margin_blocks) or 0) + (number(gate.elsewhere_blocks) or 0)) / pool
    held = number(gate.held_blocks)
    if taken < (_HEAD_TOO_LARGE if queue else NEARLY) or (held is not None and held / pool >= NEARLY):
        return None
    free = "" if held is None else f", while the engine uses {held / pool:.0%}"
    return Finding(
        code="budget_full",
        severity=Severity.WARNING,
        message=f"the gate's budget is full: {promised:,.0f} of {pool:,.0f} blocks are promised{free}; {queue:,.0f}"
        f" requests wait and {refused:,.0f} were refused for room in the window",
        evidence=_gate_evidence(gate, promised_share=promised / pool, taken_share=taken, refusals=refused),
        sure=Sure(
            "high" if held is not None else "medium", "by the gate's own ledger" + ("" if held else ", held unknown")
        ),
        refuted_by="held blocks near the pool: then the promises are used, and the pool is what is full",
        actions=(
            Action(
                "let clients send max_tokens near what they use, or set the gate's default cap lower",
                Cost.FREE,
                "fewer blocks are promised per request; more are forwarded at once",
            ),
            *_ways_to_promise_more(gate),
            Action("one more replica behind the gate", Cost.MONEY, "twice the budget", Lever.REPLICA),
        ),
        where=(gate.instance,) if gate.instance else (),
    )


def _ways_to_promise_more(gate: GateWindow) -> tuple[Action, ...]:
    """Those that are left: not the policy that runs, nor a margin that is 0."""
    ways: list[Action] = []
    if gate.policy != "learned":
        instead = "" if gate.policy == "trajectory" else " (or trajectory in place of worst-case)"
        ways.append(
            Action(
                f"--policy learned{instead}: promises follow what answers really take",
                Cost.FREE,
                "promised and held come nearer; preemptions must stay at 0",
            )
        )
    if number(gate.margin_blocks) != 0:
        ways.append(Action("a smaller margin in kvbudget.toml", Cost.FREE, "as many blocks more can be promised"))
    return tuple(ways)


def gate_places_full(gate: GateWindow) -> Finding | None:
    """Requests wait at a gate that has blocks to promise: its other limits hold them."""
    pool, promised, queue = number(gate.pool_blocks), number(gate.promised_blocks), number(gate.queue_requests) or 0
    if not pool or promised is None or queue < _PLACES:
        return None
    taken = promised + (number(gate.margin_blocks) or 0) + (number(gate.elsewhere_blocks) or 0)
    if taken / pool >= _HEAD_TOO_LARGE or (number(gate.held_blocks) or 0) / pool >= NEARLY:
        return None
    return Finding(
        code="seqs_full",
        severity=Severity.WARNING,
        message=f"{queue:,.0f} requests wait at the gate while only {promised / pool:.0%} of the blocks are promised:"
        " its limit of sequences, or of tenants, holds them",
        evidence=_gate_evidence(gate, promised_share=promised / pool),
        sure=Sure("medium", "by elimination: the gate has blocks to promise"),
        refuted_by="the limits under /v1/state of the admin port not reached: then the instance is down or draining",
        actions=(
            Action(
                "look at max_num_seqs, tenants and draining under GET /v1/state, and raise what is in the way",
                Cost.FREE,
                "kvbudget_queue_requests falls",
                Lever.RAISE_THE_LIMIT,
            ),
        ),
        where=(gate.instance,) if gate.instance else (),
    )


def gate_pool_full(gate: GateWindow) -> Finding | None:
    """The engine holds nearly all that it has, by its own word, and requests wait at the gate."""
    pool, held = number(gate.pool_blocks), number(gate.held_blocks)
    queue, refused = number(gate.queue_requests) or 0, _refused(gate)
    if not pool or held is None or held / pool < NEARLY or not (queue or refused):
        return None
    return Finding(
        code="pool_full",
        severity=Severity.WARNING,
        message=f"the pool is full and the gate holds the rest back: {held:,.0f} of {pool:,.0f} blocks are held,"
        f" {queue:,.0f} requests wait at the gate, {refused:,.0f} were refused for room",
        evidence=_gate_evidence(gate, held_share=held / pool, refusals=refused),
        sure=Sure("high", "by the engine's word, as the gate reads it"),
        refuted_by="held blocks below 0.9 of the pool while the queue stays",
        actions=(
            Action("nothing at the engine: the gate keeps it from preempting", Cost.FREE, "preemptions stay at 0"),
            Action("8-bit KV cache: --kv-cache-dtype fp8", Cost.QUALITY, "twice the tokens", Lever.EIGHT_BIT_CACHE),
            Action("one more replica behind the gate", Cost.MONEY, "twice the requests at once", Lever.REPLICA),
        ),
        where=(gate.instance,) if gate.instance else (),
    )


def bypass(gate: GateWindow) -> Finding | None:
    """Traffic reaches the engine on another way than through the gate."""
    pool, elsewhere = number(gate.pool_blocks), number(gate.elsewhere_blocks)
    if not pool or not elsewhere or elsewhere < max(_BYPASS_BLOCKS, _BYPASS * pool):
        return None
    return Finding(
        code="bypass",
        severity=Severity.WARNING,
        message=f"{elsewhere:,.0f} blocks ({elsewhere / pool:.0%} of the pool) are held by requests that did not come"
        " through the gate: it cannot keep the pool from going full",
        evidence=_gate_evidence(gate, elsewhere_share=elsewhere / pool),
        sure=Sure("medium", "what the engine holds beyond all that the gate promised, at three looks in a row"),
        refuted_by="the same figure with every client stopped: then something of the engine's own holds them",
        actions=(
            Action(
                "let only the gate reach the engine's port (bind it to 127.0.0.1, or a network policy)",
                Cost.FREE,
                "kvbudget_elsewhere_blocks falls to 0 as the last of them ends",
            ),
            Action(
                "or give those clients the gate's address, with a tenant of their own",
                Cost.FREE,
                "they are counted, queued and refused like all others",
            ),
        ),
        where=(gate.instance,) if gate.instance else (),
    )


def _refused(gate: GateWindow) -> float:
    return sum(number(gate.refusals.get(reason)) or 0.0 for reason in _ROOM_REFUSALS)


def _gate_evidence(gate: GateWindow, **more: float | None) -> dict[str, float | str | None]:
    told: dict[str, float | None] = {
        "pool_blocks": number(gate.pool_blocks),
        "promised_blocks": number(gate.promised_blocks),
        "held_blocks": number(gate.held_blocks),
        "elsewhere_blocks": number(gate.elsewhere_blocks),
        "margin_blocks": number(gate.margin_blocks),
        "queue_requests": number(gate.queue_requests),
        "queue_tokens": number(gate.queue_tokens),
        **more,
        "window_s": number(gate.window_s),
    }
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in told.items()}
