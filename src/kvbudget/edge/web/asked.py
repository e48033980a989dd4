"""Decides what the ledger page asks for: its fields, as they stand in the address, become a request for a plan.

Every field has a default, so that an address without any is a whole state: 32 layers of 8 KV heads of 128, fp16, 8,192
tokens, 16 requests, blocks of 16. What a field leaves open to the engine, such as max_num_seqs, the engine decides.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

from kvbudget.edge.web.catalogue import config_named
from kvbudget.engines.flags import EngineFlags
from kvbudget.errors import BadValueError, InputError
from kvbudget.model.read import Model, model_from_config
from kvbudget.planner.advice.cost import LARGEST_PRICE
from kvbudget.planner.build import make_plan
from kvbudget.planner.hardware.gpus import Gpu, gpus_named
from kvbudget.planner.paper import PRECISIONS, Shape, model_of_shape, plain_weights, precision_named
from kvbudget.planner.request import Amount, Finding, Plan, PlanRequest
from kvbudget.planner.sizes import memory_size
from kvbudget.planner.workload.lengths import Lengths, parse_lengths
from kvbudget.units import Bytes, Tokens, decimal_number, format_size, is_digits, parse_length

ENGINE = "vllm@0.32"
DEFAULTS: Mapping[str, str] = {
    "layers": "32", "kv_heads": "8", "head_dim": "128", "dtype": "fp16", "context": "8192", "concurrency": "16",
    "block": "16", "model": "", "gpu": "", "gpu_memory": "", "utilization": "", "weights": "", "activation": "",
    "overhead": "", "tp": "1", "prompt_lengths": "", "output_lengths": "", "max_num_seqs": "",
    "price_per_hour": "",
}  # fmt: skip
_MOST = {"layers": 512, "kv_heads": 512, "head_dim": 4096, "concurrency": 1_000_000, "block": 65536, "tp": 64,
         "max_num_seqs": 1_000_000}  # fmt: skip
_LONGEST = 10**9
_FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")
# What the command line calls a field of this page.
_FIELDS = {
    "--gpu": "gpu", "--gpu-memory": "gpu_memory", "--gpu-memory-utilization": "utilization", "--weights": "weights",
    "--activation": "activation", "--overhead": "overhead", "--tensor-parallel-size": "tp", "-tp": "tp",
    "--max-num-seqs": "max_num_seqs", "--max-model-len": "context", "--block-size": "block",
    "--kv-cache-dtype": "dtype", "--target-concurrency": "concurrency", "--prompt-lengths": "prompt_lengths",
    "--output-lengths": "output_lengths", "--price-per-hour": "price_per_hour",
}  # fmt: skip


class Asked(NamedTuple):
    """The state of the page, each field checked. None: not given. `model`: a name of the catalogue, or "".

    `fields`: as they were written, defaults filled in; they are what an address that is shared says. `target`: requests
    at once that somebody asked for; `concurrency` is the default where nobody did.
    `block`: None where a model is named and no block is: the engine takes its own, such as 64 for sparse attention.
    """

    fields: Mapping[str, str]
    shape: Shape
    context: Tokens
    concurrency: int
    target: int | None
    block: Tokens | None
    model: str
    config: Mapping[str, object] | None
    prompt_lengths: Lengths | None
    output_lengths: Lengths | None
    price_per_gpu_hour: float | None

    def with_block(self, block: int) -> "Asked":
        """The same with blocks of so many tokens."""
        return self._replace(block=Tokens(block))


def asked_in(query: Mapping[str, str], config: Mapping[str, object] | None = None) -> Asked:
    """Read the fields of an address; `config`: a config.json that was pasted or dropped, instead of a shape.

    Raises BadValueError, which names the field, its limit and what was given.
    """
    unknown = sorted(query.keys() - DEFAULTS.keys())
    if unknown:
        raise BadValueError(f"{unknown[0][:40]}: no field of this page", fix=f"one of {', '.join(DEFAULTS)}")
    fields = {name: query.get(name, "").strip() or default for name, default in DEFAULTS.items()}
    context = parse_length(fields["context"], "context")
    if not 1 <= context <= _LONGEST:
        raise BadValueError(f"context: {context} is out of range", fix=f"1 to {_LONGEST:,} tokens")
    shape = Shape(_whole(fields, "layers"), _whole(fields, "kv_heads"), _whole(fields, "head_dim"), fields["dtype"])
    block = Tokens(_whole(fields, "block"))
    return Asked(
        fields=fields,
        shape=shape,
        context=context,
        concurrency=(concurrency := _whole(fields, "concurrency")),
        target=concurrency if query.get("concurrency", "").strip() else None,
        block=None if (fields["model"] or config is not None) and not query.get("block", "").strip() else block,
        model=fields["model"],
        config=config,
        prompt_lengths=_lengths(fields, "prompt_lengths"),
        output_lengths=_lengths(fields, "output_lengths"),
        price_per_gpu_hour=_price(fields["price_per_hour"]) if fields["price_per_hour"] else None,
    )


def plan_asked(asked: Asked) -> Plan:
    """The plan of that state. Without a card, the pool is just what the requests need.

    Raises InputError for what cannot be planned at all; an engine that would not start is a plan with findings.
    """
    model, kv_dtype = _model(asked)
    fields = asked.fields
    card, cards = _card(fields["gpu"]) if fields["gpu"] else (None, None)
    seqs = _whole(fields, "max_num_seqs") if fields["max_num_seqs"] else None
    if seqs is None and not has_card(asked):  # no card, no default of the engine: a limit that is none here
        seqs = max(256, asked.concurrency)
    flags = EngineFlags(
        max_model_len=asked.context,
        max_num_seqs=seqs,
        block_size=asked.block,
        kv_cache_dtype=kv_dtype,
        tensor_parallel_size=_whole(fields, "tp"),
    )
    if fields["utilization"]:
        flags = flags._replace(gpu_memory_utilization=_share(fields["utilization"]))
    assumed = has_card(asked) and not (fields["weights"] or fields["model"]) and asked.config is None
    weights = plain_weights(asked.shape) if assumed else _size(fields, "weights")
    request = PlanRequest(
        model=model,
        engine=ENGINE,
        flags=flags,
        gpu=card,
        gpus=cards,
        gpu_memory=_size(fields, "gpu_memory"),
        weights=None if weights is None else Amount(weights, "estimated" if assumed else "given", "weights"),
        activation=_size(fields, "activation"),
        overhead=_size(fields, "overhead"),
        prompt_lengths=asked.prompt_lengths,
        output_lengths=asked.output_lengths,
        target_concurrency=asked.target if has_card(asked) else None,
    )
    if assumed:
        plan = make_plan(request)
        return plan._replace(findings=(*plan.findings, _assumed(weights or Bytes(0))))
    if has_card(asked):
        return make_plan(request)
    return _just_enough(request, asked)


def has_card(asked: Asked) -> bool:
    """Whether the memory of a card is known, so that the pool follows from it."""
    return bool(asked.fields["gpu"] or asked.fields["gpu_memory"])


def _card(name: str) -> tuple[Gpu, int | None]:
    try:
        return gpus_named(name)
    except InputError:
        raise BadValueError(
            f"gpu: {name[:40]!r} is unknown", fix="choose one of the list, or write what its driver shows as gpu_memory"
        ) from None


def _assumed(weights: Bytes) -> Finding:
    return Finding(
        "weights_assumed",
        "warning",
        f"a shape has no weights: {format_size(weights)} are taken, those of a plain decoder around it in 16 bits",
        "write how large the weights are, choose a model of the catalogue, or paste its config.json",
    )


def in_words_of_the_page(error: InputError) -> InputError:
    """The planner's own words name flags of the command line; here they are fields."""
    said = [_FLAG.sub(_field_of, text) for text in (error.message, error.fix)]
    told = BadValueError(said[0], fix=said[1])
    told.code = error.code
    return told


def _field_of(flag: re.Match[str]) -> str:
    return _FIELDS.get(flag[0], flag[0])


def _just_enough(request: PlanRequest, asked: Asked) -> Plan:
    """A pool of as many blocks as the requests hold, and the null block."""
    request = request._replace(weights=None, activation=None, overhead=None)
    first = make_plan(request._replace(kv_cache_memory=Bytes(1 << 62)))
    blocks = asked.concurrency * first.stage.layout.blocks_for(asked.context) + 1
    return make_plan(request._replace(kv_cache_memory=Bytes(blocks * first.stage.layout.bytes_per_block)))


def _model(asked: Asked) -> tuple[Model, str]:
    """(model, kv_cache_dtype): read from a config.json, or a plain one of the shape that the sliders give."""
    if asked.config is not None:
        return model_from_config(dict(asked.config), "pasted config.json"), precision_named(asked.shape.dtype).flag
    if asked.model:
        return model_from_config(config_named(asked.model), asked.model), precision_named(asked.shape.dtype).flag
    return model_of_shape(asked.shape)


def _whole(fields: Mapping[str, str], name: str) -> int:
    text, most = fields[name], _MOST[name]
    number = int(text) if is_digits(text) and len(text) <= 9 else 0
    if not 1 <= number <= most:
        raise BadValueError(f"{name}: {text[:40]!r} is out of range", fix=f"a whole number from 1 to {most:,}")
    return number


def _share(text: str) -> float:
    try:
        share = decimal_number(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise BadValueError(f"utilization: {text[:40]!r} is no share", fix="a number above 0, at most 1, such as 0.92")
    return share


def _price(text: str) -> float:
    try:
        price = decimal_number(text)
    except ValueError:
        price = 0.0
    if not 0 < price <= LARGEST_PRICE:
        raise BadValueError(
            f"price_per_hour: {text[:40]!r} is no price",
            fix=f"the price of one GPU for one hour, a number above 0, at most {LARGEST_PRICE:,.0f}",
        )
    return price


def _size(fields: Mapping[str, str], name: str) -> Bytes | None:
    return memory_size(fields[name], name) if fields[name] else None


def _lengths(fields: Mapping[str, str], name: str) -> Lengths | None:
    return parse_lengths(fields[name], name) if fields[name] else None


__all__ = ["DEFAULTS", "ENGINE", "PRECISIONS", "Asked", "asked_in", "has_card", "in_words_of_the_page", "plan_asked"]
