"""Decides what a reviewed budget holds: what was asked for, what came out, what people decided, and what `serve` reads.

A budget is a plain document (tables of strings and numbers, as TOML has them). Everything that is computed is written
anew by every plan; [targets], [tolerance], [notes] and edits of [gate] belong to people and survive.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvbudget.errors import BadConfigError
from kvbudget.model.layers import Layer
from kvbudget.planner.budget.toml import toml_text
from kvbudget.planner.document import plan_json
from kvbudget.planner.request import Plan, Told
from kvbudget.planner.workload.margin import parse_margin
from kvbudget.pool.groups import Group, LayerKind, Layout
from kvbudget.units import GIB, format_size, is_digits

SCHEMA = "kvbudget.budget/1"
Document = dict[str, object]

# What `kvbudget plan` was told about its output, not about the plan; the targets have a section of their own.
NOT_INPUTS = frozenset(
    {"model", "json", "explain", "write", "markdown", "html", "png", "run", "command", "target_concurrency", "no_color"}
)
# argparse keeps the name of the command itself as `command`, so the flag --command needs another one.
_FLAGS = {"command_line": "command"}
DEFAULT_RETREAT = (
    "admit fewer requests at once",
    "shorten the context cap",
    "quantise the KV cache (fp8)",
    "share prefixes",
    "refuse",
)
DEFAULT_TOLERANCE: Mapping[str, object] = {"pool": "1%", "receipt": "3%", "workload": "10%"}
_KEPT_RECEIPTS = 20
# Of the plan's "concurrency": written elsewhere, or to be had from the rest.
_NOT_KEPT = ("lengths", "totals", "largest_at_low_end")


class Inputs(NamedTuple):
    """What was asked for: MODEL, and the flags of `kvbudget plan` by their names without dashes in front."""

    model: str
    flags: Mapping[str, str | int | float | bool]


def request_inputs(model: str, given: Mapping[str, object]) -> Inputs:
    """The inputs from a parsed command line: what is None, names output, or was left at `later_...` is dropped.

    `given` maps names as argparse keeps them (`max_model_len`) to what the user wrote; leave defaults out.
    """
    flags: dict[str, str | int | float | bool] = {}
    for name, value in given.items():
        if name in NOT_INPUTS or name.startswith("later"):
            continue
        if isinstance(value, str | int | float | bool):
            flags[_FLAGS.get(name, name).replace("_", "-")] = value
    return Inputs(model, flags)


def arguments_of(document: Mapping[str, object]) -> list[str]:
    """The command line of `kvbudget plan` that makes this budget's plan again, with its present targets and margin."""
    inputs = section(document, "inputs")
    arguments = [str(inputs.get("model", ""))]
    flags = dict(section(inputs, "flags"))
    margin = section(document, "gate").get("margin")
    if margin:  # the gate keeps it back, whether it was planned with one or not
        flags["margin"] = margin
    target = section(document, "targets").get("concurrency")
    if isinstance(target, int) and target > 0:
        flags["target-concurrency"] = target
    for name, value in flags.items():
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        else:
            arguments.append(f"--{name}={value}")
    return arguments


def budget_of(
    plan: Plan,
    inputs: Inputs,
    *,
    written: str,
    written_by: str = "",
    config_sha256: str = "",
    margin: str = "",
    retreat: Sequence[str] = (),
    workload: Mapping[str, object] | None = None,
) -> Document:
    """The budget of a plan. `written`: the date, `2026-11-29`; `written_by`: kvbudget's version; `margin` as in
    --margin; `workload`: what else is known of it (a trace's name, sha256, number of requests, percentiles)."""
    told = plan_json(plan)
    pool, concurrency, kv = section(told, "pool"), section(told, "concurrency"), section(told, "kv")
    document: Document = {
        "schema": SCHEMA,
        "written": written,
        "written_by": written_by,
        "fits": plan.fits,
        "findings": _errors(plan) or None,
        "notes": [],
        "inputs": {"model": inputs.model, "flags": dict(inputs.flags)},
        "model": _model(plan, config_sha256),
        "precision": _precision(plan),
        "engine": section(told, "engine"),
        "hardware": _hardware(plan),
        "memory": _memory(plan),
        "kv": _kv(plan, kv),
        "pool": pool,
        "capacity": {
            **{name: value for name, value in concurrency.items() if name not in _NOT_KEPT},
            "blocks_per_request": int(plan.pool.blocks_per_request),
        },
        "workload": _workload(plan, workload or {}),
        "targets": _targets(plan),
        "tolerance": dict(DEFAULT_TOLERANCE),
        "gate": {},
    }
    if retreat:
        section(document, "targets")["retreat"] = list(retreat)
    section(document, "gate").update(derived_gate(document))
    if margin:
        section(document, "gate")["margin"] = margin
    return without_none(document)


def carried_over(new: Mapping[str, object], old: Mapping[str, object]) -> Document:
    """`new` with what people wrote into `old`: targets that are not given anew, tolerances, notes, edits of [gate],
    receipts, [[backend]], and tables of their own. A value of [gate] is an edit where it is not what `old`'s own
    figures give."""
    document: Document = dict(new)
    if "created" in old or "written" in old:
        document["created"] = old.get("created") or old["written"]
    document["notes"] = old.get("notes", [])
    document["targets"] = {**section(old, "targets"), **section(new, "targets")}
    document["tolerance"] = {**section(new, "tolerance"), **section(old, "tolerance")}
    derived = derived_gate(old)
    edits = {name: value for name, value in section(old, "gate").items() if derived.get(name) != value}
    dropped = {name for name in derived if name not in section(old, "gate")}
    given = {name: value for name, value in section(new, "gate").items() if derived_gate(new).get(name) != value}
    gate = {name: value for name, value in section(new, "gate").items() if name not in dropped}
    document["gate"] = {**gate, **edits, **given}
    for name in ("receipts", "backend"):
        if found := tables(old, name):
            document[name] = found
    document |= {name: value for name, value in old.items() if name not in KNOWN_TABLES}
    return {name: document[name] for name in (*_ORDER, *document) if name in document}


def with_receipt(document: Mapping[str, object], receipt: Mapping[str, object]) -> Document:
    """The budget with one receipt more, the newest last; a receipt of the same start is not added twice."""
    known = [table for table in tables(document, "receipts") if _start(table) != _start(receipt)]
    return {**document, "receipts": [*known, dict(receipt)][-_KEPT_RECEIPTS:]}


def told_by(document: Mapping[str, object]) -> tuple[Told, ...]:
    """What the budget's receipts say of memory, for the estimates; a receipt that says nothing of it is left out."""
    found = []
    for table in tables(document, "receipts"):
        parts = {name: table.get(f"{name}_bytes") for name in ("activation", "cuda_graphs", "non_torch")}
        sizes = {name: value for name, value in parts.items() if isinstance(value, int) and value >= 0}
        weights, pool, length = table.get("weights_bytes"), table.get("kv_bytes"), table.get("max_model_len")
        rest = weights + pool if isinstance(weights, int) and isinstance(pool, int) else None
        version = str(table.get("version", "")).split(".")[:2]
        if table.get("engine") != "vllm" or not all(is_digits(part) for part in version):
            continue
        if len(version) == 2 and (sizes or rest is not None):
            numbers = int(version[0][:4]), int(version[1][:4])
            found.append(Told(numbers, length if isinstance(length, int) else None, rest=rest, **sizes))
    return tuple(found)


def derived_gate(document: Mapping[str, object]) -> Document:
    """What [gate] holds as long as nobody edits it: the reviewed pool and the engine's limits."""
    pool, engine, capacity = section(document, "pool"), section(document, "engine"), section(document, "capacity")
    groups = tables(section(document, "kv"), "groups")
    gate: Document = {}
    usable = pool.get("usable_blocks")
    if isinstance(usable, int) and usable > 0:
        gate["pool_blocks"] = usable
    if plain_groups(
        document
    ):  # other groups draw from the pool by rules that a block size does not tell: `layout_of` gives them whole
        gate["block_size"] = groups[0].get("block_size")
    gate |= {
        "max_context": capacity.get("max_model_len"),
        "max_num_seqs": engine.get("max_num_seqs"),
        "max_num_batched_tokens": engine.get("max_num_batched_tokens"),
    }
    return without_none(gate)


def gate_settings(document: Mapping[str, object]) -> Document:
    """[gate] as flags of `kvbudget serve`, by argparse's names: a `margin` has become `margin_blocks`.

    Raises BadValueError for a margin that is none.
    """
    gate = dict(section(document, "gate"))
    margin = gate.pop("margin", None)
    usable = gate.get("pool_blocks", section(document, "pool").get("usable_blocks"))
    if margin is not None and "margin_blocks" not in gate:
        gate["margin_blocks"] = int(parse_margin(str(margin)).of(usable if isinstance(usable, int) else 0))
    return {name.replace("-", "_"): value for name, value in gate.items() if name not in GATE_TABLES}


def gate_tables(document: Mapping[str, object], kind: str) -> dict[str, dict[str, Any]]:
    """The tables of [gate.`kind`], one of GATE_TABLES, by name."""
    tables_of = section(section(document, "gate"), kind)
    return {name: dict(table) for name, table in tables_of.items() if isinstance(table, Mapping)}


def plain_groups(document: Mapping[str, object]) -> bool:
    """Whether every layer keeps every token in blocks of one size, so that a block size says it all."""
    groups = tables(section(document, "kv"), "groups")
    bounded = ("most_tokens", "extra_blocks", "fixed_blocks")
    return len(groups) == 1 and not any(groups[0].get(name) for name in bounded)


def layout_of(document: Mapping[str, object]) -> Layout | None:
    """The reviewed groups, for who accounts by them; None when the budget holds none. Raises BadConfigError for groups
    that are damaged: an account by anything else would promise what the engine has not."""
    kv = section(document, "kv")
    if "groups" not in kv:
        return None
    written = tables(kv, "groups")
    try:
        groups = tuple(_group(table) for table in written)
    except (KeyError, TypeError, ValueError):
        groups = ()
    if not groups or len(written) != len(kv["groups"]):  # type: ignore[arg-type] # a list, or there were no tables
        raise BadConfigError(
            "kv.groups is damaged", fix="move the file away, and write it anew: kvbudget plan ... --write"
        )
    alignment = kv.get("block_alignment")
    layout = Layout(groups, block_alignment=alignment if isinstance(alignment, int) else 1)
    _check_sums(document, layout)
    return layout


def _check_sums(document: Mapping[str, object], layout: Layout) -> None:
    """The groups must come to what the same plan wrote beside them: one that is lost or altered would be a request's
    blocks that nobody counts. Raises BadConfigError."""
    capacity = section(document, "capacity")
    length = capacity.get("max_model_len")
    needed = layout.blocks_for(length) if isinstance(length, int) and length > 0 else None
    for key, told, found in (
        ("kv.bytes_per_block", section(document, "kv").get("bytes_per_block"), int(layout.bytes_per_block)),
        ("capacity.blocks_per_request", capacity.get("blocks_per_request"), needed),
    ):
        if isinstance(told, int) and found is not None and told != found:
            raise BadConfigError(
                f"kv.groups come to {found:,}, and {key} says {told:,}: a group is lost or was altered",
                fix="move the file away, and write it anew: kvbudget plan ... --write",
            )


def _group(table: Mapping[str, object]) -> Group:
    """Raises KeyError, TypeError or ValueError where it is none."""
    kind, layers, block_size = LayerKind(str(table["kind"])), table["layers"], table["block_size"]
    sizes = {name: value for name, value in table.items() if name != "kind"}
    if not all(type(size) is int and size >= 0 for size in sizes.values()) or not (layers and block_size):
        raise ValueError
    return Group(kind, **sizes)  # type: ignore[arg-type] # whole numbers, each under its name


def budget_text(document: Mapping[str, object]) -> str:
    """The file. Reading it back gives `document`, and writing that again gives the same text."""
    ordered = {name: document[name] for name in (*_ORDER, *document) if name in document}
    return toml_text(ordered, {**_COMMENTS, **_sizes_said(document)}, _HEAD)


def section(document: Mapping[str, object], name: str) -> Document:
    """A table of the document; empty when it is not there or no table."""
    found = document.get(name)
    return found if isinstance(found, dict) else {}


def tables(document: Mapping[str, object], name: str) -> list[Document]:
    """A list of tables; what is none is left out."""
    found = document.get(name)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def without_none(document: Mapping[str, object]) -> Document:
    """TOML knows no null: keys without a value are left out, at every depth."""
    return {
        name: without_none(value) if isinstance(value, dict) else value
        for name, value in document.items()
        if value is not None
    }


def caches_of(layers: Sequence[Layer]) -> list[Document]:
    """Layers of the same caches, counted, in the order in which each kind first appears."""
    counted: dict[Layer, int] = {}
    for layer in layers:
        counted[layer] = counted.get(layer, 0) + 1
    written = []
    for layer, number in counted.items():
        table: Document = {"layers": number, "kind": layer.kind}
        for position, cache in enumerate(layer.caches):
            prefix = f"{cache.kind}_" if position else ""
            table |= {f"{prefix}{name}": value for name, value in cache._asdict().items()}
        written.append({name: value for name, value in without_none(table).items() if value not in (0, "")})
    return written


def _errors(plan: Plan) -> list[str]:
    """What stops the engine; a missed target is no matter of the engine, and is judged by the check itself."""
    errors = [finding for finding in plan.findings if finding.severity == "error"]
    return [f"{error.code}: {error.message}" for error in errors if error.code != "below_target_concurrency"]


def _model(plan: Plan, config_sha256: str) -> Document:
    model = plan.request.model
    return without_none(
        {
            "name": model.name,
            "architectures": list(model.architectures),
            "model_type": model.model_type,
            "config_sha256": config_sha256 or None,
            "layers": len(model.layers),
            "hidden_size": model.hidden_size,
            "attention_heads": model.attention_heads,
            "vocab_size": model.vocab_size,
            "parameters": model.parameters.total if model.parameters else None,
            "longest_context": int(model.max_model_len),
            "caches": caches_of(model.layers),
            "draft_caches": caches_of(model.draft_layers) or None,
        }
    )


def _precision(plan: Plan) -> Document:
    settings, model = plan.settings, plan.request.model
    return {
        "weights": model.quantization.method if model.quantization else f"{settings.element_bytes * 8} bit",
        "weight_element_bytes": int(settings.element_bytes),
        "kv_cache_dtype": settings.kv_cache_dtype,
        "kv_element_bytes": int(settings.kv_element_bytes),
    }


def _hardware(plan: Plan) -> Document:
    request, settings = plan.request, plan.settings
    return without_none(
        {
            "gpu": request.gpu.name if request.gpu else None,
            "gpus": request.gpus,
            "ranks": settings.tensor_parallel_size * settings.pipeline_parallel_size,
            "memory_bytes": int(plan.memory.total.bytes) or None,
        }
    )


def _memory(plan: Plan) -> Document:
    return {
        name: {"bytes": int(amount.bytes), "source": amount.source}
        for name, amount in plan.memory._asdict().items()
        if amount.bytes
    }


def _kv(plan: Plan, kv: Mapping[str, object]) -> Document:
    groups = []
    for group in plan.stage.layout.groups:
        table: Document = {"kind": str(group.kind)}
        table |= {name: int(value) for name, value in group._asdict().items() if name != "kind" and value}
        groups.append(table)
    plain = {name: value for name, value in kv.items() if not isinstance(value, list)}
    if plan.stage.layout.block_alignment > 1:
        plain["block_alignment"] = plan.stage.layout.block_alignment
    return {**plain, "groups": groups}


def _workload(plan: Plan, more: Mapping[str, object]) -> Document:
    request, workload = plan.request, dict(more)
    for name, lengths in (("prompt", request.prompt_lengths), ("output", request.output_lengths)):
        for share, tokens in (lengths._asdict() if lengths else {}).items():
            if isinstance(tokens, int):
                workload[f"{name}_{share}"] = int(tokens)
    return workload


def _targets(plan: Plan) -> Document:
    target = plan.request.target_concurrency
    return {"concurrency": target} if target is not None else {}


def _start(receipt: Mapping[str, object]) -> Document:
    return {name: value for name, value in receipt.items() if name not in ("added", "source", "told")}


def _sizes_said(document: Mapping[str, object]) -> dict[str, str]:
    """Beside the bytes that a reviewer looks at, the same for people."""
    said = {}
    for path in (
        "hardware.memory_bytes",
        "kv.bytes_per_token",
        "kv.bytes_per_request",
        "kv.bytes_per_block",
        "pool.bytes",
    ):
        table, _, key = path.partition(".")
        value = section(document, table).get(key)
        if isinstance(value, int):
            said[path] = format_size(value)
    for name in section(document, "memory"):
        value = section(section(document, "memory"), name).get("bytes")
        if isinstance(value, int):
            said[f"memory.{name}.bytes"] = f"{value / GIB:.2f} GiB"
    return said


_ORDER = ("schema", "created", "written", "written_by", "fits", "findings", "notes", "inputs", "targets", "tolerance",
          "gate", "backend", "model", "precision", "engine", "hardware", "memory", "kv", "pool", "capacity", "workload",
          "receipts")  # fmt: skip
KNOWN_TABLES = frozenset(_ORDER)
GATE_TABLES = frozenset({"tenants", "classes", "keys"})  # within [gate], and no flags
_HEAD = """\
The KV cache budget of this deployment. Review it like code; `kvbudget check` fails when it is no longer true, and
`kvbudget serve --config` reads [gate].
[targets], [tolerance], [gate] and notes are yours to edit: `kvbudget plan --write` keeps them. The rest is computed."""
_COMMENTS = {
    "notes": "yours: why it is as it is",
    "inputs": "What was asked for: MODEL and the flags of `kvbudget plan`. The check plans again from them.",
    "targets": "Yours: what the deployment must be able to do, and what to give up first when it cannot.",
    "tolerance": "Yours: how far the pool, a measured receipt and the workload may move before the check fails.",
    "gate": "Read by `kvbudget serve --config`: its flags, with _ for -. Your edits are kept; SIGHUP takes them over.\n"
    'margin = "5%" (of the pool) or margin_blocks = 100 keep blocks back.\n'
    "[gate.tenants.NAME] and [gate.classes.PRIORITY] hold limits of tenants, and what is kept for the urgent;\n"
    "[gate.keys.NAME] the digests of API keys, as `kvbudget key` makes them.",
    "backend": "Yours: the engines behind the gate, each with its url; read by `kvbudget serve --config`.",
    "model": "Structure, as it decides the cache.",
    "model.caches": "Layers with the same cache; sizes are of the whole model, in elements.",
    "engine": "The rule that was used, and the values that the engine runs with.",
    "memory": "One GPU rank. Sources: given, measured, computed, estimated.",
    "kv": "One GPU rank.",
    "kv.groups": "Layers that share block tables; all groups draw from one pool.",
    "pool": "num_blocks and tokens as the engine prints them.",
    "capacity": "Whole requests at once.",
    "workload": "Tokens of requests, as reviewed.",
    "receipts": "What an engine really reported (`kvbudget receipt --write`), newest last.",
}
