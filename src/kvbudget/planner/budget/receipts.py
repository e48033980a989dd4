"""Decides how far a plan and what an engine really reported are apart, and what explains the difference."""

from collections.abc import Mapping
from typing import NamedTuple

from kvbudget.engines.logs.receipt import Receipt, version_pair
from kvbudget.engines.vllm.versions import traits_of
from kvbudget.errors import UnsupportedError
from kvbudget.planner.budget.record import Document, section, tables
from kvbudget.units import GIB, format_size

# Sizes are printed with two decimals of a GiB: closer than that nothing is known.
_PRINTED = GIB // 100
_SHARED = GIB  # a context and a display take less
_OTHER_WEIGHTS = 0.05  # further apart than this share, two names are two models
_SAME_MEANING = {
    "max_model_len": ("capacity", "max_model_len"),
    "max_num_seqs": ("engine", "max_num_seqs"),
    "block_size": ("engine", "block_size"),
    "max_num_batched_tokens": ("engine", "max_num_batched_tokens"),
    "tensor_parallel_size": ("engine", "tensor_parallel_size"),
    "tp_size": ("engine", "tensor_parallel_size"),
    "num_shard": ("engine", "tensor_parallel_size"),
    "pipeline_parallel_size": ("engine", "pipeline_parallel_size"),
    "pp_size": ("engine", "pipeline_parallel_size"),
    "gpu_memory_utilization": ("engine", "gpu_memory_utilization"),
    "mem_fraction_static": ("engine", "gpu_memory_utilization"),
    "kv_cache_dtype": ("engine", "kv_cache_dtype"),
    "cache_dtype": ("engine", "kv_cache_dtype"),
}


class Row(NamedTuple):
    """One figure of both. `difference`: (actual - plan) / plan; None where one is not known or they are not comparable.

    `decides`: whether requests feel it: the pool itself, not what is around it.
    """

    what: str
    plan: int | float | None
    actual: int | float | None
    difference: float | None
    unit: str
    decides: bool


class Explanation(NamedTuple):
    """Why the two may differ: a stable code and a sentence."""

    code: str
    text: str


class Comparison(NamedTuple):
    """A receipt beside a budget. `same_start`: engine and flags are the planned ones, so that a difference counts."""

    rows: tuple[Row, ...]
    explanations: tuple[Explanation, ...]
    same_start: bool

    def beyond(self, tolerance: float) -> list[Row]:
        """The rows that decide and are further apart than `tolerance`, a share."""
        return [
            row for row in self.rows if row.decides and row.difference is not None and abs(row.difference) > tolerance
        ]


def compare(budget: Mapping[str, object], receipt: Receipt) -> Comparison:
    """Set a receipt beside the figures of a budget (or of a plan just made)."""
    pool, capacity, memory = section(budget, "pool"), section(budget, "capacity"), section(budget, "memory")
    engine = section(budget, "engine")
    other = [*_other_model(budget, receipt), *_other_flags(budget, receipt)]
    if receipt.engine != engine.get("name"):
        other.insert(
            0, Explanation("other_engine", f"the receipt is of {receipt.engine}, the plan of {engine.get('name')}")
        )
    length = capacity.get("max_model_len")
    same_length = receipt.max_model_len is None or receipt.max_model_len == length
    planned_tokens, tokens_told = _tokens(budget, receipt)
    sizes = [
        _row(name, section(memory, name).get("bytes"), actual, "bytes", decides=False)
        for name, actual in (
            ("total", receipt.total_bytes),
            ("weights", receipt.weights_bytes),
            ("activation", receipt.activation_bytes),
            ("cuda_graphs", receipt.cuda_graphs_bytes),
            ("non_torch", receipt.non_torch_bytes),
        )
    ]
    by_memory = not receipt.blocks_given
    rows = [
        *sizes,
        _row("kv", section(memory, "kv").get("bytes"), receipt.kv_bytes, "bytes", decides=by_memory),
        _row("num_blocks", pool.get("num_blocks"), receipt.num_blocks, "blocks", decides=_same_block(budget, receipt)),
        _row("tokens", planned_tokens, receipt.tokens, "tokens", decides=same_length or _single_group(budget)),
        _row("max_model_len", length, receipt.max_model_len, "tokens", decides=False),
        _row("concurrency", capacity.get("at_max_model_len"), receipt.concurrency, "requests", decides=same_length),
    ]
    found = [*other, *tokens_told, *_version(engine, receipt), *_memory_explanations(budget, receipt)]
    kept = tuple(row for row in rows if row.plan is not None or row.actual is not None)
    return Comparison(kept, tuple(found), not other)


def comparison_document(comparison: Comparison) -> Document:
    """As JSON."""
    return {
        "same_start": comparison.same_start,
        "rows": [row._asdict() for row in comparison.rows],
        "explanations": [explanation._asdict() for explanation in comparison.explanations],
    }


def _row(what: str, plan: object, actual: float | None, unit: str, *, decides: bool) -> Row:
    planned = plan if isinstance(plan, int | float) and not isinstance(plan, bool) else None
    difference = None
    if planned and actual is not None:
        apart = actual - planned
        difference = 0.0 if unit == "bytes" and abs(apart) <= _PRINTED else apart / planned
        if unit == "requests" and abs(apart) <= 0.005:
            difference = 0.0  # printed with two decimals
    return Row(what, planned, actual, difference, unit, decides)


def _tokens(budget: Mapping[str, object], receipt: Receipt) -> tuple[object, list[Explanation]]:
    """The planned tokens as that version of the engine would print them."""
    tokens, pool = section(budget, "pool").get("tokens"), section(budget, "pool")
    groups = tables(section(budget, "kv"), "groups")
    if receipt.engine != "vllm" or len(groups) < 2 or not _tokens_per_group(receipt.version or ""):
        return tokens, []
    sizes = [size for group in groups if isinstance(size := group.get("block_size"), int)]
    blocks = pool.get("num_blocks")
    if not sizes or not isinstance(blocks, int) or not isinstance(tokens, int):
        return None, []
    older = blocks // len(groups) * min(sizes)
    text = (
        "up to vLLM 0.20.0 the line said (blocks // groups) x smallest block: it would have called the planned pool "
        f"{older:,} tokens, not {tokens:,}"
    )
    return older, [Explanation("tokens_of_older_vllm", text)]


def _tokens_per_group(version: str) -> bool:
    """Whether that vLLM prints blocks // groups x block size; False for a version that is not known."""
    try:
        return bool(version) and traits_of(version.partition("+")[0]).tokens_per_group
    except UnsupportedError:
        return False


def _other_model(budget: Mapping[str, object], receipt: Receipt) -> list[Explanation]:
    """Names may differ for one model (a path, `-Instruct`), so its weights must be others too, or not be told."""
    planned = str(section(budget, "model").get("name", ""))
    own, other = _plain_name(planned), _plain_name(receipt.model or "")
    if not own or not other or own in other or other in own:
        return []
    size = section(section(budget, "memory"), "weights").get("bytes")
    told = receipt.weights_bytes
    if told is not None and isinstance(size, int) and abs(told - size) <= _OTHER_WEIGHTS * size:
        return []
    return [Explanation("other_model", f"the receipt is of {receipt.model}, the plan of {planned}")]


def _plain_name(name: str) -> str:
    """`meta-llama/Llama-3.1-8B` as `llama318b`; the cache's `models--meta-llama--Llama-3.1-8B` too."""
    last = name.rstrip("/").rpartition("/")[2].rpartition("--")[2]
    return "".join(c for c in last.lower() if c.isalnum())


def _version(engine: Mapping[str, object], receipt: Receipt) -> list[Explanation]:
    planned, actual = version_pair(str(engine.get("version", ""))), version_pair(receipt.version or "")
    if receipt.engine != engine.get("name") or planned is None or actual is None or planned == actual:
        return []
    text = f"planned by the rule of {engine['name']} {engine['version']}, the engine is {receipt.version}"
    return [Explanation("other_version", text)]


def _memory_explanations(budget: Mapping[str, object], receipt: Receipt) -> list[Explanation]:
    found = []
    least, most = receipt.kv_bytes, receipt.kv_bytes_most
    if least is not None and most is not None and most - least > _PRINTED:
        text = f"the tightest rank decides: {format_size(least)} there, {format_size(most)} on the roomiest"
        found.append(Explanation("tightest_rank", text))
    if receipt.graphs_counted is False and receipt.cuda_graphs_bytes:
        size = format_size(receipt.cuda_graphs_bytes)
        text = f"this engine captures CUDA graphs ({size}) after it has sized the pool: they are not taken off it"
        found.append(Explanation("graphs_after_the_pool", text))
    total, free = receipt.total_bytes, receipt.free_bytes
    if total and free and total - free > _SHARED:
        text = f"{format_size(total - free)} of the card was in use before the engine started: another process"
        found.append(Explanation("shared_card", text))
    planned = section(section(budget, "memory"), "non_torch").get("bytes")
    if receipt.non_torch_bytes and isinstance(planned, int) and receipt.non_torch_bytes > planned + 2 * GIB:
        taken = format_size(receipt.non_torch_bytes)
        text = f"{taken} outside of torch is more than an engine alone takes: look for another process"
        found.append(Explanation("foreign_memory", text))
    if receipt.blocks_given:
        found.append(Explanation("blocks_given", "the number of blocks was asked for: memory did not decide it"))
    if receipt.refusal:
        found.append(Explanation("refused_to_start", f"the engine did not start: {receipt.refusal[:300]}"))
    return found


def _other_flags(budget: Mapping[str, object], receipt: Receipt) -> list[Explanation]:
    """Flags of the receipt that are not those of the plan: the two are then different starts."""
    found, named = [], set()
    told = {**dict(receipt.flags)}
    if receipt.max_model_len is not None and receipt.refusal is None:
        told["max_model_len"] = str(receipt.max_model_len)
    for flag, value in told.items():
        table, key = _SAME_MEANING.get(flag, ("", ""))
        planned = section(budget, table).get(key)
        if planned is None or key in named or value in ("None", "auto", "-1") or _equal(planned, value):
            continue
        if key == "kv_cache_dtype" and str(planned) == "auto":
            continue
        named.add(key)
        found.append(Explanation("other_flags", f"{key} is {value} there, {planned} in the plan"))
    return found


def _equal(planned: object, told: str) -> bool:
    try:
        return float(str(planned)) == float(told)
    except ValueError:
        return str(planned).lower() == told.lower()


def _same_block(budget: Mapping[str, object], receipt: Receipt) -> bool:
    return receipt.block_size is None or receipt.block_size == section(budget, "engine").get("block_size")


def _single_group(budget: Mapping[str, object]) -> bool:
    return len(tables(section(budget, "kv"), "groups")) == 1
