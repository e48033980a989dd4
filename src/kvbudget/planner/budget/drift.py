"""Decides whether a reviewed budget is still true: every reason why not, with both values and what to do."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from kvbudget.engines.logs.receipt import receipt_from, version_pair
from kvbudget.errors import BadValueError
from kvbudget.planner.budget.receipts import Row, compare
from kvbudget.planner.budget.record import SCHEMA, section, tables
from kvbudget.units import decimal_number, format_size, parse_length

_REVIEW = "review the new figures, then write them: kvbudget plan ... --write"


class Reason(NamedTuple):
    """Why the check fails. `what` is the dotted name in the file; values are None where there is none."""

    code: str
    what: str
    reviewed: object
    present: object
    message: str
    fix: str


# Which part of the file moved, and what that means. `engine` is told apart by key: its name and version, or its flags.
_PARTS = {
    "model": ("model_changed", "the model is not the one that was reviewed"),
    "precision": ("precision_changed", "another precision costs another number of bytes"),
    "hardware": ("hardware_changed", "another card, or another number of them"),
    "kv": ("cache_changed", "a token or a request costs another number of bytes or blocks"),
}
# A later version may tell more of these than was reviewed; a file that tells nothing of them was not reviewed at all.
_GROWING = {"engine": "engine_changed", "kv": "cache_changed", "precision": "precision_changed"}
_POOL = ("num_blocks", "usable_blocks", "tokens")
_ENGINE_ITSELF = ("name", "version")
_NOT_OF_THE_PLAN = ("model.name",)  # the folder's name: where it lies says nothing of what it is


def drift(reviewed: Mapping[str, object], present: Mapping[str, object], *, today: str = "") -> list[Reason]:
    """Reasons why `reviewed` no longer holds, most fundamental first; empty when it does.

    `present` is the budget of the plan made again from the same inputs. `today` as `2026-11-29`, for review dates.
    Raises BadValueError for a tolerance that is none.
    """
    return [
        *_schema(reviewed),
        *_moved(reviewed, present),
        *_pool(reviewed, present),
        *_workload(reviewed, present),
        *_fits(reviewed, present),
        *_gate(reviewed, present),
        *_receipts(reviewed, present),
        *_due(reviewed, today),
    ]


def _schema(reviewed: Mapping[str, object]) -> Iterator[Reason]:
    if reviewed.get("schema") != SCHEMA:
        told = f"the file is of schema {reviewed.get('schema')!r}"
        yield Reason("schema_changed", "schema", reviewed.get("schema"), SCHEMA, told, _REVIEW)


def _moved(reviewed: Mapping[str, object], present: Mapping[str, object]) -> Iterator[Reason]:
    for part, code in _GROWING.items():
        if not section(reviewed, part):
            yield Reason(code, part, None, None, f"[{part}] is not in the file: nothing was reviewed", _REVIEW)
    for part, (code, message) in _PARTS.items():
        for what, old, new in _differences(part, *_both(reviewed, present, part)):
            if what == "model.config_sha256":
                told = "config.json is not the file that was reviewed"
                yield Reason("config_changed", what, old, new, told, _REVIEW)
            elif what not in _NOT_OF_THE_PLAN:
                yield Reason(code, what, old, new, message, _REVIEW)
    for what, old, new in _differences("engine", *_both(reviewed, present, "engine")):
        if what.removeprefix("engine.") in _ENGINE_ITSELF:
            told = "the pool is sized by the rule of another engine or version"
            yield Reason("engine_changed", what, old, new, told, _REVIEW)
        else:
            yield Reason("flags_changed", what, old, new, "the engine runs with another value", _REVIEW)
    what, old, new = (
        "capacity.max_model_len",
        _at(reviewed, "capacity", "max_model_len"),
        _at(present, "capacity", "max_model_len"),
    )
    if old != new:
        yield Reason("flags_changed", what, old, new, "the cap on one request is another", _REVIEW)


def _both(
    reviewed: Mapping[str, object], present: Mapping[str, object], part: str
) -> tuple[Mapping[str, object], Mapping[str, object]]:
    """The part of both. A later version of kvbudget may tell more of engine and cache than was reviewed: no finding."""
    old, new = section(reviewed, part), section(present, part)
    return old, ({name: new.get(name) for name in old} if part in _GROWING else new)


def _differences(
    path: str, old: Mapping[str, object], new: Mapping[str, object]
) -> Iterator[tuple[str, object, object]]:
    for name in dict.fromkeys((*old, *new)):
        before, after = old.get(name), new.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differences(f"{path}.{name}", before, after)
        elif before != after:
            yield from _in_lists(f"{path}.{name}", before, after)


def _in_lists(path: str, before: object, after: object) -> Iterator[tuple[str, object, object]]:
    """Lists of tables are told entry by entry: a reviewer sees the one number that changed."""
    if not (isinstance(before, list) and isinstance(after, list) and len(before) == len(after)):
        yield path, before, after
        return
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        if isinstance(one, dict) and isinstance(other, dict):
            yield from _differences(f"{path}[{number}]", one, other)
        elif one != other:
            yield f"{path}[{number}]", one, other


def _pool(reviewed: Mapping[str, object], present: Mapping[str, object]) -> Iterator[Reason]:
    """The number of blocks says why; figures beside it that nobody but a hand can have moved are told on their own."""
    allowed = tolerance_of(reviewed, "pool")
    apart = [name for name in _POOL if _apart(_at(reviewed, "pool", name), _at(present, "pool", name), allowed)]
    if "num_blocks" not in apart:
        for name in apart:
            old, new = _at(reviewed, "pool", name), _at(present, "pool", name)
            told = "the pool is as many blocks as reviewed, but this figure is not what they come to"
            yield Reason("pool_changed", f"pool.{name}", old, new, told, _REVIEW)
        return
    old, new = _at(reviewed, "pool", "num_blocks"), _at(present, "pool", "num_blocks")
    moved = [
        f"{name} {_size(_at_memory(reviewed, name))} -> {_size(_at_memory(present, name))}"
        for name in section(present, "memory")
        if name != "kv" and _at_memory(reviewed, name) != _at_memory(present, name)
    ]
    because = f" ({'; '.join(moved)})" if moved else ""
    if isinstance(old, int) and isinstance(new, int):
        share = f"{(new - old) / old:+.1%}" if old else "from nothing"
        grown = "larger" if new > old else "smaller"
        message = f"the pool is {grown}: {share}, more than the {allowed:.1%} of [tolerance]{because}"
    else:
        message = "the pool is not in the file: nothing was reviewed"
    yield Reason("pool_changed", "pool.num_blocks", old, new, message, _REVIEW)


def _apart(old: object, new: object, allowed: float) -> bool:
    if not isinstance(new, int):
        return False
    return not isinstance(old, int) or abs(new - old) > allowed * max(old, 1)


def _workload(reviewed: Mapping[str, object], present: Mapping[str, object]) -> Iterator[Reason]:
    allowed = tolerance_of(reviewed, "workload")
    for what, old, new in _differences("workload", section(reviewed, "workload"), section(present, "workload")):
        if what.endswith("sha256"):
            continue  # another trace of the same lengths is no other workload
        if (
            isinstance(old, int | float)
            and isinstance(new, int | float)
            and abs(new - old) <= allowed * max(abs(old), 1e-9)
        ):
            continue
        message = f"requests are not what was reviewed, by more than the {allowed:.0%} of [tolerance]"
        yield Reason(
            "workload_moved", what, old, new, message, "plan with the present workload, and review its ceilings"
        )


def _fits(reviewed: Mapping[str, object], present: Mapping[str, object]) -> Iterator[Reason]:
    """The target is one of requests of p95 length where lengths are known, as in `kvbudget plan`."""
    target, held = _at(reviewed, "targets", "concurrency"), _at(present, "capacity", "p95")
    engines = _at(present, "capacity", "engines")
    if isinstance(held, int) and isinstance(engines, int):
        held *= engines
    if isinstance(target, int) and isinstance(held, int) and held < target:
        steps = section(reviewed, "targets").get("retreat")
        first = f"; first to give up: {steps[0]}" if isinstance(steps, list) and steps else ""
        where = f" on {engines} engines" if isinstance(engines, int) and engines > 1 else ""
        noun = "request" if held == 1 else "requests"
        flags = section(section(reviewed, "inputs"), "flags")
        length = "p95 length" if flags.keys() & {"trace", "prompt-lengths"} else "full length"
        message = f"{held:,} {noun} of {length} at once{where}, [targets] wants {target:,}"
        fix = f"lower the target, shorten max_model_len, or add memory{first}"
        yield Reason("below_target_concurrency", "targets.concurrency", target, held, message, fix)
    findings = present.get("findings")
    for told in findings if isinstance(findings, list) else []:
        fix = "kvbudget plan with the same flags says more"
        never = "as when it was written: " if reviewed.get("fits") is False else ""
        yield Reason("no_longer_fits", "fits", reviewed.get("fits"), False, f"{never}{told}", fix)


def _gate(reviewed: Mapping[str, object], present: Mapping[str, object]) -> Iterator[Reason]:
    gate = section(reviewed, "gate")
    for name, limit, meant in (
        ("pool_blocks", _at(present, "pool", "usable_blocks"), "the gate would promise blocks that the engine has not"),
        (
            "max_context",
            _at(present, "capacity", "max_model_len"),
            "the gate would let requests in that the engine refuses",
        ),
        (
            "max_num_seqs",
            _at(present, "engine", "max_num_seqs"),
            "the gate would send more than the engine runs at once",
        ),
    ):
        value = gate.get(name)
        if isinstance(value, str):
            value = _length(value)
        slack = tolerance_of(reviewed, "pool") if name == "pool_blocks" else 0.0
        if isinstance(value, int) and isinstance(limit, int) and value > limit * (1 + slack):
            yield Reason("gate_beyond_plan", f"gate.{name}", value, limit, meant, f"set it to at most {limit}")
    groups = tables(section(present, "kv"), "groups")
    size, planned = gate.get("block_size"), groups[0].get("block_size") if len(groups) == 1 else None
    if isinstance(size, int) and isinstance(planned, int) and size > planned:
        meant = "the gate would count fewer blocks for a request than the engine takes"
        yield Reason("gate_beyond_plan", "gate.block_size", size, planned, meant, f"set it to {planned}")


def _length(text: str) -> int | None:
    """[gate] max_context may be written 8k."""
    try:
        return int(parse_length(text))
    except BadValueError:
        return None


def _receipts(reviewed: Mapping[str, object], present: Mapping[str, object]) -> Iterator[Reason]:
    """The newest receipt counts; older ones are history."""
    stored = tables(reviewed, "receipts")
    if not stored:
        return
    receipt = receipt_from(stored[-1])
    comparison = compare(present, receipt)
    planned = str(_at(present, "engine", "version") or "")
    told = "; ".join(explanation.text for explanation in comparison.explanations)
    if receipt.engine != _at(present, "engine", "name") or (
        receipt.version and version_pair(receipt.version) != version_pair(planned) and version_pair(receipt.version)
    ):
        yield Reason(
            "receipt_of_other_engine",
            "engine.version",
            f"{_at(present, 'engine', 'name')} {planned}",
            f"{receipt.engine} {receipt.version or ''}".strip(),
            "what was measured runs another engine or version than was planned for",
            "plan with --engine of the version that runs, or take the receipt of the planned one",
        )
    elif not comparison.same_start:
        message = f"what was measured was started otherwise than planned: {told}"
        fix = "plan with the flags that the engine runs with, or start it as planned"
        yield Reason("receipt_of_other_flags", "receipts", None, None, message, fix)
    elif receipt.refusal:
        fix = "kvbudget plan with the same flags says what would start"
        yield Reason(
            "engine_refused", "receipts", True, False, f"the engine did not start: {receipt.refusal[:200]}", fix
        )
    for row in comparison.beyond(tolerance_of(reviewed, "receipt")) if comparison.same_start else []:
        yield _receipt_differs(row, told)


def _receipt_differs(row: Row, told: str) -> Reason:
    less = row.difference is not None and row.difference < 0
    message = f"the engine reported {row.difference:+.1%} of the planned {row.what}" + (f": {told}" if told else "")
    fix = (
        "give what the log says (--weights, --activation, --overhead) and plan again"
        if less
        else "more than planned is there: plan again with what the log says, and use it"
    )
    return Reason("receipt_differs", row.what, row.plan, row.actual, message, fix)


def _due(reviewed: Mapping[str, object], today: str) -> Iterator[Reason]:
    due = str(section(reviewed, "targets").get("review_by", ""))
    if due and today and due < today:
        yield Reason(
            "review_due",
            "targets.review_by",
            due,
            today,
            "it was to be reviewed by then",
            "review it, and set a new date",
        )


def tolerance_of(document: Mapping[str, object], name: str) -> float:
    """[tolerance] as a share, written `1%` or 0.01; 0 where it is not set. Raises BadValueError for anything else."""
    value = section(document, "tolerance").get(name, 0)
    text = str(value).strip()
    try:
        share = decimal_number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 10:
        raise BadValueError(f"tolerance.{name}: {text[:40]!r} is no share", fix='write "1%" or 0.01')
    return share


def _at(document: Mapping[str, object], table: str, key: str) -> object:
    return section(document, table).get(key)


def _size(value: object) -> str:
    return format_size(value) if isinstance(value, int) else str(value)[:40]


def _at_memory(document: Mapping[str, object], name: str) -> object:
    return section(section(document, "memory"), name).get("bytes", 0)
