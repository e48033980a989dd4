"""Decides what a budget file may hold: every table, every key and its kind of value, for whoever reads or writes one.

First the whole document is bounded, whatever it holds; then what is known is judged key by key. A key that is not known
is refused, because a misspelt one would otherwise change an answer in silence; only whole tables of one's own, under
names that are like none of ours, may stand beside them.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import NamedTuple

from kvbudget.engines.logs.receipt import Receipt
from kvbudget.errors import BadConfigError, BadValueError, printable
from kvbudget.planner.budget.drift import tolerance_of
from kvbudget.planner.budget.record import (
    GATE_TABLES,
    KNOWN_TABLES,
    NOT_INPUTS,
    gate_tables,
    plain_groups,
    section,
    tables,
)
from kvbudget.planner.request import Memory
from kvbudget.planner.workload.margin import parse_margin
from kvbudget.pool.groups import Group, LayerKind
from kvbudget.units import parse_length, parse_size

_DEEPEST = 12  # tables within tables; ours are four deep
_MOST_VALUES = 200_000
_LARGEST = 2**63 - 1
_LARGEST_BLOCK = 2**31 - 1  # tokens; a recurrent state's block is as long as the context
_MOST_GROUPS = 1024
LARGEST_GATE_BLOCK = 1 << 20  # tokens; vLLM's largest so far are hybrids' 4,128, and the gate keeps a row as long
_LONGEST_NAME = 120
_LIGHTEST, _HEAVIEST = 0.001, 1_000  # a tenant's weight: beyond, sums of weights and service lose what is small
POLICIES = ("worst-case", "trajectory", "learned")  # `gate.policies` is beside this package, not below it
_REMOVE = "correct or remove it; or move the file away, and kvbudget plan ... --write writes it anew"


class Kind(NamedTuple):
    """What a value must be: in words, and as a test."""

    words: str
    fits: Callable[[object], bool]


def checked(document: Mapping[str, object]) -> None:
    """Raise BadConfigError, with the dotted name of the first value, where the document is no budget."""
    _bounded(document)
    for name, value in document.items():
        if name not in KNOWN_TABLES:
            if near := _near(name, KNOWN_TABLES):
                raise _refused((name,), "is not known", f"did you mean {near}?")
        elif name in _TABLES:
            _table((name,), value, _TABLES[name])
        elif name in _VALUES:
            _value((name,), value, _VALUES[name])
    _inputs(document)
    _groups(document)
    _gate(document)
    _backends(document)
    for name, amount in section(document, "memory").items():
        known = {"bytes": SIZE if name == "kv" else COUNT, "source": TEXT}  # what is left for the cache can be below 0
        _table(("memory", name), amount, known)
    for name, fact in _as_table(("workload",), document.get("workload", {})).items():
        _value(("workload", name), fact, SCALAR)
    _receipts(document)


def unknown_tables(document: Mapping[str, object]) -> list[str]:
    """Names at the top that are people's own: kept, and read by nobody."""
    return [name for name in document if name not in KNOWN_TABLES]


def is_name(text: str) -> bool:
    """Whether a tenant or a key may be called that: 1 to 64 letters, digits, '.', '_' or '-'."""
    return 0 < len(text) <= _LONGEST_TENANT and _TENANT_SIGNS.issuperset(text)


def _bounded(document: Mapping[str, object]) -> None:
    """Nothing that a later reader, a sum or a writer could stumble over: depth, number, size and kind of values."""
    pending: list[tuple[tuple[str, ...], object]] = [((), document)]
    seen = 0
    while pending:
        path, value = pending.pop()
        seen += 1
        if seen > _MOST_VALUES:
            raise BadConfigError(f"more than {_MOST_VALUES:,} values", fix="keep what is no budget in another file")
        if len(path) > _DEEPEST:
            raise _refused(path, f"is nested deeper than {_DEEPEST} tables", "keep it flat")
        if isinstance(value, Mapping):
            pending += [((*path, str(name)), below) for name, below in value.items()]
        elif isinstance(value, list | tuple):
            pending += [((*path, f"[{number}]"), below) for number, below in enumerate(value)]
        elif isinstance(value, float):
            if not isfinite(value):
                raise _refused(path, f"is {value}, no number to calculate with", _REMOVE)
        elif isinstance(value, int):
            if abs(value) > _LARGEST:
                raise _refused(path, f"is beyond {_LARGEST:,}", _REMOVE)
        elif not isinstance(value, str):
            raise _refused(
                path, f"is a {type(value).__name__}; dates and times stand there as text", "put it in quotes"
            )


def _as_table(path: tuple[str, ...], value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise _refused(path, "must be one table", f"write [{path[-1]}], in single brackets")
    return value


def _table(
    path: tuple[str, ...], value: object, known: Mapping[str, Kind], beside: frozenset[str] = frozenset()
) -> None:
    """`beside`: names that are known there as well, and judged elsewhere."""
    for name, entry in _as_table(path, value).items():
        if name not in known:
            near = _near(name, beside | known.keys())
            raise _refused((*path, name), "is not known there", f"did you mean {near}?" if near else _REMOVE)
        _value((*path, name), entry, known[name])


def _value(path: tuple[str, ...], value: object, kind: Kind) -> None:
    if not kind.fits(value):
        raise _refused(path, f"is {_shown(value)}, not {kind.words}", _REMOVE)


def _inputs(document: Mapping[str, object]) -> None:
    flags = section(section(document, "inputs"), "flags")
    for name, value in flags.items():
        path = ("inputs", "flags", name)
        if name == "target-concurrency":
            raise _refused(path, "is a target, not an input", "write it as [targets] concurrency")
        if name in _NO_INPUTS or not _FLAG_SIGNS.issuperset(name) or not name[:1].isalpha():
            raise _refused(path, "is no input of a plan", "remove it; kvbudget plan --help names the flags")
        _value(path, value, FLAG)


def _gate(document: Mapping[str, object]) -> None:
    gate = _as_table(("gate",), document.get("gate", {}))
    named = {name.replace("-", "_"): value for name, value in gate.items()}
    if len(named) < len(gate):
        raise _refused(("gate",), "says one flag twice, once with _ and once with -", "leave one of them")
    _table(("gate",), {name: value for name, value in named.items() if name not in GATE_TABLES}, GATE, GATE_TABLES)
    _tenants(gate)
    _classes(document, gate)
    _keys(gate)
    if "block_size" in named and tables(section(document, "kv"), "groups") and not plain_groups(document):
        raise _refused(
            ("gate", "block_size"),
            "cannot stand beside [[kv.groups]] that do not all keep every token: requests are charged by them",
            "remove it",
        )


def _tenants(gate: Mapping[str, object]) -> None:
    for name, table in _as_table(("gate", "tenants"), gate.get("tenants", {})).items():
        path = ("gate", "tenants", name)
        if name != "*" and not is_name(name):
            raise _refused(path, "is no name of a tenant", "use 1 to 64 letters, digits, '.', '_', '-', or \"*\"")
        _table(path, table, _TENANT)


def _classes(document: Mapping[str, object], gate: Mapping[str, object]) -> None:
    for name, table in _as_table(("gate", "classes"), gate.get("classes", {})).items():
        if name not in _PRIORITIES:
            raise _refused(
                ("gate", "classes", name),
                f"is no priority from -{_MOST_URGENT} to {_MOST_URGENT}",
                "write the number of its x-kvbudget-priority: [gate.classes.-10]; smaller is more urgent, "
                "and 0 is everybody who sends none",
            )
        _table(("gate", "classes", name), table, _CLASS)
    for limit, kept in (("pool_blocks", "reserved_blocks"), ("max_num_seqs", "reserved_slots")):
        most, reserved = (
            gate.get(limit),
            sum([table.get(kept, 0) for table in gate_tables(document, "classes").values()]),
        )
        if isinstance(most, int) and reserved > most:
            raise _refused(
                ("gate", "classes"), f"keep {reserved} {kept} in all, more than gate.{limit} = {most}", "keep fewer"
            )


def _keys(gate: Mapping[str, object]) -> None:
    digests: dict[object, str] = {}
    for name, table in _as_table(("gate", "keys"), gate.get("keys", {})).items():
        path = ("gate", "keys", name)
        if not is_name(name):
            raise _refused(path, "is no name of a key", "use 1 to 64 letters, digits, '.', '_' or '-'")
        _table(path, table, _KEY)
        digest = _as_table(path, table).get("sha256")
        if digest is None:
            raise _refused((*path, "sha256"), "is missing", "kvbudget key makes a key and its table")
        if digest in digests:
            raise _refused(path, f"is the same key as gate.keys.{digests[digest]}", "remove one of them")
        digests[digest] = name


def _backends(document: Mapping[str, object]) -> None:
    backends = document.get("backend", [])
    if not isinstance(backends, list) or len(backends) > _MOST_BACKENDS:
        raise _refused(("backend",), f"must be at most {_MOST_BACKENDS} tables", "write each as [[backend]]")
    for number, backend in enumerate(backends):
        path = ("backend", f"[{number}]")
        _table(path, backend, BACKEND)
        if "url" not in backend:
            raise _refused((*path, "url"), "is missing", "write http://HOST:PORT")
        for alias, own in backend.get("aliases", {}).items():
            _value((*path, "aliases", alias), own, TEXT)
    if backends and {"backend", "embedded_engine"} & section(document, "gate").keys():
        raise _refused(("backend",), "cannot stand beside gate.backend or gate.embedded_engine", "keep one of them")


def _groups(document: Mapping[str, object]) -> None:
    kv = section(document, "kv")
    if "groups" not in kv:
        if kv or "engine" in document or "model" in document:
            raise _refused(("kv", "groups"), "is missing: the gate charges requests by it", _REMOVE)
        return
    groups = kv["groups"]
    if not isinstance(groups, list) or not 0 < len(groups) <= _MOST_GROUPS:
        raise _refused(("kv", "groups"), f"must be 1 to {_MOST_GROUPS} tables", "write each as [[kv.groups]]")
    for number, group in enumerate(groups):
        path = ("kv", "groups", f"[{number}]")
        _table(path, group, _GROUP)
        for name in ("kind", "layers", "block_size", "page_size_bytes"):
            if name not in group:
                raise _refused((*path, name), "is missing", _REMOVE)


def _receipts(document: Mapping[str, object]) -> None:
    receipts = document.get("receipts", [])
    if not isinstance(receipts, list):
        raise _refused(("receipts",), "must be a list of tables", "write each as [[receipts]]")
    for number, receipt in enumerate(receipts):
        _table(("receipts", f"[{number}]"), receipt, _RECEIPT)


def _refused(path: tuple[str, ...], why: str, fix: str) -> BadConfigError:
    return BadConfigError(f"{_named(path)} {why}", fix=fix, place=path)


def _named(path: tuple[str, ...]) -> str:
    """`kv.groups[0].kind`; a long one by its beginning and its end."""
    parts = path if len(path) < 8 else (*path[:4], "...", *path[-2:])
    shown = [printable(part, _LONGEST_NAME) or '""' for part in parts]
    text = shown[0] + "".join(part if part[:1] == "[" else f".{part}" for part in shown[1:])
    return text if len(text) <= 2 * _LONGEST_NAME else f"{text[:_LONGEST_NAME]}...{text[-_LONGEST_NAME:]}"


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value)[:60]


def _near(name: str, known: Mapping[str, object] | frozenset[str]) -> str:
    import difflib  # only an unknown name needs it

    near = difflib.get_close_matches(name[:64].lower(), list(known), n=1, cutoff=0.7)
    return near[0] if near else ""


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _whole(least: int, most: int = _LARGEST) -> Kind:
    words = f"a whole number from {least}" + (f" to {most:,}" if most < _LARGEST else "")
    return Kind(words, lambda value: _is_whole(value) and least <= value <= most)  # type: ignore[operator] # it is one


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def _is_day(value: object) -> bool:
    digits = value.split("-") if isinstance(value, str) and value.isascii() else []
    return [len(part) for part in digits] == [4, 2, 2] and all(part.isdigit() for part in digits)


def _is_digest(value: str) -> bool:
    return len(value) == 64 and frozenset("0123456789abcdef").issuperset(value)


def _is_share(value: object) -> bool:
    try:
        tolerance_of({"tolerance": {"share": value}}, "share")
    except BadValueError:
        return False
    return isinstance(value, str) or _is_number(value)


def _parses(parse: Callable[[str], object], value: object) -> bool:
    try:
        parse(str(value))
    except BadValueError:
        return False
    return isinstance(value, str) or _is_number(value)


def _one_of(*texts: str) -> Kind:
    return Kind(f"one of {', '.join(texts)}", lambda value: isinstance(value, str) and value in texts)


TEXT = Kind("text in quotes", lambda value: isinstance(value, str))
SIGN = Kind("true or false", lambda value: isinstance(value, bool))
COUNT = _whole(0)
POSITIVE = _whole(1)
SIZE = Kind("a whole number", _is_whole)
NUMBER = Kind("a number from 0", lambda value: _is_number(value) and value >= 0)  # type: ignore[operator] # it is one
LIST = Kind("a list of texts", _is_texts)
DAY = Kind('a day, as "2026-11-29"', _is_day)
SHARE = Kind('a share, as "1%" or 0.01', _is_share)
LENGTH = Kind('a length: 8192 or "8k"', lambda value: not isinstance(value, float) and _parses(parse_length, value))
BYTES = Kind('a size: 16777216 or "16MiB"', lambda value: not isinstance(value, float) and _parses(parse_size, value))
FLAG = Kind(
    "text, a number, true or false",
    lambda value: isinstance(value, bool | int | float) or (isinstance(value, str) and value not in ("", "--")),
)
MARGIN = Kind('a margin: "5%", 0.05 or blocks', lambda value: _parses(parse_margin, value))
SCALAR = Kind("text, a number, true or false", lambda value: isinstance(value, str | int | float))
TABLE = Kind("a table", lambda value: isinstance(value, Mapping))
TABLES = Kind("a list of tables", lambda value: isinstance(value, list) and all(map(TABLE.fits, value)))
ADDRESSES = Kind("text, or a list of texts", lambda value: isinstance(value, str) or _is_texts(value))

# Flags of `kvbudget serve`: a value that stands here is one that its command line would take.
GATE: Mapping[str, Kind] = {
    "backend": ADDRESSES, "embedded_engine": SIGN, "tokenizer": TEXT, "chat_template": TEXT,
    "default_chat_template_kwargs": TEXT, "segment_cache": BYTES, "image_tokens": POSITIVE, "forward_token_ids": SIGN,
    "pool_blocks": POSITIVE,
    "block_size": _whole(1, LARGEST_GATE_BLOCK), "max_context": LENGTH, "max_num_seqs": POSITIVE,
    "max_num_batched_tokens": POSITIVE, "policy": _one_of(*POLICIES), "margin_blocks": COUNT, "margin": MARGIN,
    "queue_requests": COUNT, "queue_tokens": LENGTH, "queue_seconds": NUMBER, "slo_ttft": NUMBER,
    "default_max_tokens": LENGTH, "max_prompt_logprobs_tokens": _whole(0, 10**9),
    "prefix_credit": _one_of("auto", "off", "computed", "scheduled"), "learned_state": TEXT,
    "overload_status": _whole(429, 529), "ledger": TEXT, "lease_seconds": NUMBER,
    "ledger_lost": _one_of("refuse", "slice"), "host": TEXT, "port": _whole(0, 65535),
    "workers": _whole(1, 256), "admin_host": TEXT, "admin_port": _whole(0, 65535), "max_body": BYTES,
    "drain_seconds": NUMBER, "json": SIGN, "access_log": TEXT, "otlp_endpoint": TEXT, "shadow": SIGN,
    "tls_cert": TEXT, "tls_key": TEXT, "backend_ca": TEXT,
    "backend_api_key_file": TEXT, "proxy_protocol": TEXT,
}  # fmt: skip
_MOST_BACKENDS = 64  # each is looked at all the time, and tried for every request
_PART = Kind("a number from 0 to 1", lambda value: _is_number(value) and 0 <= value <= 1)  # type: ignore[operator]
_WEIGHT = Kind(
    f"a number from {_LIGHTEST} to {_HEAVIEST:,}",
    lambda value: _is_number(value) and _LIGHTEST <= value <= _HEAVIEST,  # type: ignore[operator] # it is one
)
# An engine behind the gate; what is not said there holds as [gate] says for all.
BACKEND: Mapping[str, Kind] = {
    "url": TEXT, "name": TEXT, "models": LIST, "aliases": TABLE, "weight": _WEIGHT, "tier": COUNT,
    "pool_blocks": POSITIVE, "block_size": _whole(1, LARGEST_GATE_BLOCK), "max_context": LENGTH,
    "max_num_seqs": POSITIVE, "borrow": _PART, "fallback": LIST, "fallback_share": _PART, "drain": SIGN,
    "tokenizer": TEXT, "chat_template": TEXT, "default_chat_template_kwargs": TEXT, "image_tokens": POSITIVE,
}  # fmt: skip
_LONGEST_TENANT = 64
_TENANT_SIGNS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_MOST_URGENT = 100  # and least: as x-kvbudget-priority
_PRIORITIES = frozenset(map(str, range(-_MOST_URGENT, _MOST_URGENT + 1)))
_TENANT: Mapping[str, Kind] = {
    "weight": _WEIGHT,
    "max_blocks": POSITIVE,
    "tokens_per_minute": POSITIVE,
}
_KEY: Mapping[str, Kind] = {
    "sha256": Kind("64 hexadecimal digits", lambda value: isinstance(value, str) and _is_digest(value)),
    "tenant": Kind(
        "a tenant's name: 1 to 64 letters, digits, '.', '_' or '-'",
        lambda value: isinstance(value, str) and is_name(value),
    ),
    "most_urgent": _whole(-_MOST_URGENT, _MOST_URGENT),
    "any_tenant": SIGN,
}
_CLASS: Mapping[str, Kind] = {"reserved_blocks": COUNT, "reserved_slots": COUNT}
_NO_INPUTS = frozenset({name.replace("_", "-") for name in NOT_INPUTS} - {"command"} | {"help", "version"})
_FLAG_SIGNS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_GROUP: Mapping[str, Kind] = {
    **dict.fromkeys(Group._fields, COUNT),
    "kind": _one_of(*LayerKind),
    "layers": POSITIVE,
    "block_size": _whole(1, _LARGEST_BLOCK),
}
_OTHER_THAN_SIZES = {
    "added": TEXT, "source": TEXT, "engine": TEXT, "flags": TABLE, "told": LIST, "concurrency": NUMBER,
    "version": TEXT, "model": TEXT, "refusal": TEXT, "graphs_counted": SIGN, "blocks_given": SIGN,
}  # fmt: skip
_RECEIPT = dict.fromkeys(Receipt._fields, SIZE) | _OTHER_THAN_SIZES
_VALUES: Mapping[str, Kind] = {
    "schema": TEXT, "created": TEXT, "written": TEXT, "written_by": TEXT, "fits": SIGN, "findings": LIST,
}  # fmt: skip
_TABLES: Mapping[str, Mapping[str, Kind]] = {
    "inputs": {"model": TEXT, "flags": TABLE},
    "targets": {"concurrency": POSITIVE, "retreat": LIST, "review_by": DAY},
    "tolerance": {"pool": SHARE, "receipt": SHARE, "workload": SHARE},
    "model": {
        "name": TEXT, "architectures": LIST, "model_type": TEXT, "config_sha256": TEXT, "layers": COUNT,
        "hidden_size": COUNT, "attention_heads": COUNT, "vocab_size": COUNT, "parameters": COUNT,
        "longest_context": COUNT, "caches": TABLES, "draft_caches": TABLES,
    },
    "precision": {
        "weights": TEXT, "weight_element_bytes": NUMBER, "kv_cache_dtype": TEXT, "kv_element_bytes": NUMBER,
    },
    "engine": {
        "name": TEXT, "version": TEXT, "max_in_flight_tokens": COUNT, "block_size": COUNT,
        "max_num_batched_tokens": COUNT, "max_num_seqs": COUNT, "kv_cache_dtype": TEXT, "tensor_parallel_size": COUNT,
        "pipeline_parallel_size": COUNT, "data_parallel_size": COUNT, "gpu_memory_utilization": NUMBER,
    },
    "hardware": {"gpu": TEXT, "gpus": COUNT, "ranks": COUNT, "memory_bytes": COUNT},
    "memory": dict.fromkeys(Memory._fields, TABLE),
    "kv": {
        "bytes_per_token": COUNT, "page_size_bytes": COUNT, "bytes_per_block": COUNT, "bytes_per_request": COUNT,
        "block_alignment": POSITIVE, "groups": TABLES,
    },
    "pool": {"bytes": SIZE, "num_blocks": COUNT, "usable_blocks": COUNT, "tokens": COUNT},
    "capacity": {
        "blocks_per_request": POSITIVE,
        "max_model_len": COUNT, "at_max_model_len": NUMBER, "largest_max_model_len": COUNT, "p50": COUNT, "p95": COUNT,
        "p99": COUNT, "ceiling": COUNT, "limited_by": TEXT, "margin_blocks": COUNT, "engines": COUNT,
    },
}  # fmt: skip
