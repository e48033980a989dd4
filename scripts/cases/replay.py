"""How a field report is planned again: its config completed, its version read, its printed figures taken as intervals."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kvbudget.engines.flags import EngineFlags, Speculation
from kvbudget.errors import InputError
from kvbudget.model.read import Model, model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import gpu_named
from kvbudget.planner.request import Amount, Plan, PlanRequest
from kvbudget.units import GIB, Bytes

ROOT = Path(__file__).resolve().parents[2]
Case = Mapping[str, Any]

# Reports that name a date or an engine generation instead of a version; the newest trait that such a version has.
_VERSIONS_BY_WORD = (
    ("V0", "0.6"), ("Jan 2025", "0.8"), ("Apr 2025", "0.8"), ("Jul 2025", "0.9"), ("Jul 2026", "0.27"),
    ("Aug 2026", "0.28"),
)  # fmt: skip
_TYPES = {
    "gemma3": "gemma3_text", "gemma4": "gemma4_text", "qwen3_5": "qwen3_5_text", "qwen3_5_moe": "qwen3_5_moe_text",
    "mistral3": "mistral",
}  # fmt: skip
_KINDS = {"sliding": "sliding_attention", "full": "full_attention", "linear": "linear_attention"}


class Check(NamedTuple):
    """One figure: predicted from the lowest and the highest value that the given figures may mean, and observed.

    `decimals`: of the observed figure, as it was printed.
    """

    what: str
    low: float
    high: float
    observed: float
    decimals: int = 0

    @property
    def verdict(self) -> str:
        """exact, within print, or WRONG."""
        low, high = round(self.low, self.decimals), round(self.high, self.decimals)
        if low == high == self.observed:
            return "exact"
        return "within print" if low <= self.observed <= high else "WRONG"

    @property
    def predicted(self) -> str:
        """One number, or the two ends."""
        low, high = (f"{round(end, self.decimals):,.{max(0, self.decimals)}f}" for end in (self.low, self.high))
        return low if low == high else f"{low}..{high}"


class Outcome(NamedTuple):
    """What a replay found. `explanation`: why the printed figures alone cannot give the observed ones; `not_yet`: what
    is missing to replay it; `note`: what to know beside it."""

    checks: tuple[Check, ...]
    explanation: str = ""
    not_yet: str = ""
    note: str = ""

    @property
    def verdict(self) -> str:
        """The worst of all checks."""
        verdicts = {check.verdict for check in self.checks}
        if "WRONG" in verdicts:
            return "WRONG"
        if self.not_yet:
            return "not yet"
        if self.explanation or not self.checks:
            return "explained"
        return "within print" if "within print" in verdicts else "exact"


def same(what: str, predicted: float, observed: float, decimals: int = 0) -> Check:
    """A check whose input is exact."""
    return Check(what, predicted, predicted, observed, decimals)


def holds(what: str, fact: bool) -> Check:
    """A check of a yes or no."""
    return Check(what, float(fact), float(fact), 1.0)


def near(what: str, predicted: float, observed: float, within: float) -> Check:
    """A check of figures that are near one another: what is counted beside them is not in the log."""
    return Check(what, predicted - within, predicted + within, observed, 2)


def printed(value: float, decimals: int = 2, unit: int = GIB) -> tuple[int, int]:
    """The bytes that a printed figure may stand for."""
    half = 0.5 / 10**decimals
    return int((value - half) * unit), int((value + half) * unit)


def version_of(case: Case) -> str:
    """The engine's version, as --engine takes it; the newest when the report names none."""
    text = str(case.get("engine_version") or "")
    if found := re.search(r"\b0\.\d+", text):
        return found[0]
    return next((version for word, version in _VERSIONS_BY_WORD if word in text), "0.32")


def completed(config: Mapping[str, Any]) -> dict[str, Any]:
    """A whole config.json: reports state what decides the cache, and layer types by their number alone."""
    whole = {key: value for key, value in config.items() if key not in ("checked", "note")}
    whole["model_type"] = _TYPES.get(whole.get("model_type", "llama"), whole.get("model_type", "llama"))
    heads = whole.setdefault("num_attention_heads", max(32, whole.get("num_key_value_heads", 32)))
    whole.setdefault("hidden_size", heads * whole.get("head_dim", 128))
    whole.setdefault("intermediate_size", 4 * whole["hidden_size"])
    whole.setdefault("vocab_size", 32000)
    if config.get("model_type") == "gemma4":
        whole["attention_k_eq_v"] = True  # without it num_global_key_value_heads means nothing
    if config.get("model_type") == "mistral3":
        whole["sliding_window"] = None  # the class default is that of Mistral 7B
    counts = whole.get("layer_types")
    if isinstance(counts, Mapping):
        whole["layer_types"] = _spread(counts)
    return whole


def _spread(counts: Mapping[str, int]) -> list[str]:
    """The rarer kind last in each turn, as in the published models, and what is over at the end."""
    common, rare = sorted(counts, key=lambda kind: -counts[kind])
    turn = counts[common] // counts[rare]
    spread = ([common] * turn + [rare]) * counts[rare]
    return [_KINDS[kind] for kind in spread + [common] * (counts[common] - turn * counts[rare])]


def model_of(case: Case, **changes: Any) -> Model:
    """The case's model; `changes` are config keys that the report leaves out."""
    changes.setdefault("max_position_embeddings", max(131072, case["flags"].get("max_model_len", 0)))
    return model_from_config(completed(dict(case["config"]) | changes), case["model"])


def plan_of(case: Case, model: Model, memory: int | None = None, engine: str = "", **given: Any) -> Plan:
    """The case's start with `memory` bytes for the cache. `given`: EngineFlags and PlanRequest fields by name."""
    flags = {key: value for key, value in case["flags"].items() if key in EngineFlags._fields}
    request = {key: given.pop(key) for key in list(given) if key in PlanRequest._fields}
    flags |= given
    flags["kv_cache_dtype"] = str(flags.get("kv_cache_dtype", "auto")).split(" ")[0]
    return make_plan(
        PlanRequest(
            model=model,
            engine=engine or f"vllm@{version_of(case)}",
            flags=EngineFlags(**flags),
            kv_cache_memory=None if memory is None else Bytes(memory),
            **request,
        )
    )


def card_of(case: Case, kv: float) -> dict[str, Any]:
    """The card, which decides the batch defaults; a report without one tells the least that it can be by its pool."""
    try:
        return {"gpu": gpu_named(str(case["hardware"]["gpu"]))}
    except (KeyError, InputError):
        return {"gpu_memory": Bytes(int(case["hardware"].get("total_gib", kv / 0.9) * GIB))}


def pool_checks(
    case: Case,
    model: Model,
    kv: float,
    *,
    tokens: float | None = None,
    blocks: int | None = None,
    concurrency: float | None = None,
    **given: Any,
) -> tuple[Check, ...]:
    """The pool from a printed GiB; from the observed blocks, where there are any, tokens and concurrency to the digit."""
    given = card_of(case, kv) | given
    low, high = (plan_of(case, model, memory, **given) for memory in printed(kv))
    checks = []
    if blocks is not None:
        checks.append(Check("blocks", low.pool.num_blocks, high.pool.num_blocks, blocks))
        low = high = plan_of(case, model, num_gpu_blocks_override=blocks, **given)
    if tokens is not None:
        checks.append(Check("tokens", low.pool.tokens, high.pool.tokens, tokens))
    if concurrency is not None:
        checks.append(Check("concurrency", low.pool.concurrency, high.pool.concurrency, concurrency, 2))
    return tuple(checks)


def needed(plan: Plan) -> float:
    """GiB of one request of max_model_len, as the engine's refusal states it."""
    return plan.pool.blocks_per_request * plan.stage.layout.bytes_per_block / GIB


def weights(gib: float) -> Amount:
    """Weights as a log printed them."""
    return Amount(Bytes(int(gib * GIB)), "given", "start-up log")


def draft(model: Model, method: str, tokens: int = 1) -> Speculation:
    """Speculation by a draft of its own."""
    return Speculation(method, tokens, model)
