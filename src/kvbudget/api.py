"""Planning from Python: `from kvbudget import load, plan`. Decides how plain arguments become a request.

Sizes are bytes (int) or text with a unit ("24GiB"); lengths are tokens (int) or text ("8k", "auto"). All results are
per GPU. A model that is read once plans thousands of times: one plan takes a fraction of a millisecond.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kvbudget.edge.hub.folder import read_checkpoint
from kvbudget.edge.hub.loaded import weights_beside
from kvbudget.engines.flags import AUTO_LENGTH, EngineFlags, Speculation
from kvbudget.engines.registry import DEFAULT_ENGINE
from kvbudget.errors import BadValueError
from kvbudget.model.read import Model, model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.document import plan_json
from kvbudget.planner.hardware.gpus import gpus_named
from kvbudget.planner.request import Amount, Plan, PlanRequest
from kvbudget.planner.workload.lengths import Lengths, parse_lengths
from kvbudget.planner.workload.margin import Margin, parse_margin
from kvbudget.units import Bytes, parse_length, parse_size

_LONGEST = 2**31
_SWITCHES = ("async_scheduling", "enable_prefix_caching", "kv_unified", "flash_attention")

__all__ = ["LoadedModel", "load", "plan", "plan_json"]


class LoadedModel(NamedTuple):
    """A model's structure, and the bytes of its weight files where they lie beside config.json (None where not).

    `weight_bytes`: of the whole checkpoint in 16-bit types.
    """

    model: Model
    weight_bytes: Bytes | None = None


def load(reference: str | Mapping[str, object], *, name: str = "", assume: str = "") -> LoadedModel:
    """Read a folder, a config.json, a .gguf, a hub id ("owner/model@revision"), or a parsed config.json.

    `assume="full"` reads an unknown architecture as full attention. Raises kvbudget.errors.InputError (BadConfigError,
    BadValueError, UnsupportedError) with what is wrong and what to do next.
    """
    if not isinstance(reference, str):
        return LoadedModel(model_from_config(dict(reference), name, assume))
    checkpoint = read_checkpoint(reference)
    model = model_from_config(checkpoint.config, name or checkpoint.name, assume)
    weights = weights_beside(checkpoint, model, 2)
    return LoadedModel(model, weights.bytes if weights else None)


def plan(
    model: str | Mapping[str, object] | LoadedModel,
    *,
    gpu: str | None = None,
    gpus: int | None = None,
    gpu_memory: int | str | None = None,
    kv_cache_memory_bytes: int | str | None = None,
    weights: int | str | None = None,
    activation: int | str | None = None,
    overhead: int | str | None = None,
    engine: str = DEFAULT_ENGINE,
    max_model_len: int | str | None = None,
    prompt_lengths: str | Mapping[str, int] | None = None,
    output_lengths: str | Mapping[str, int] | None = None,
    target_concurrency: int | None = None,
    requests: Sequence[tuple[int, int]] = (),
    margin: str | float | int | None = None,
    speculation: Speculation | Mapping[str, object] | None = None,
    **flags: object,
) -> Plan:
    """Plan the KV cache of `model` (see `load`) on a card.

    Give `gpu` ("h100", "h100:8"), or `gpu_memory` of one card, or the pool itself as `kv_cache_memory_bytes`.
    `weights` are those of the whole checkpoint; `activation` and `overhead` are per GPU. Lengths are
    "p50=800,p95=4000,p99=8000" or {"p50": 800, ...}; or give real `requests`, (prompt, output) tokens each. `margin` is
    "5%", 0.05 or a number of blocks. `speculation` is vLLM's --speculative-config as a mapping. `flags` are the
    engine's, by vLLM's names with underscores: tensor_parallel_size=2, kv_cache_dtype="fp8", block_size=32, ... (the
    fields of kvbudget.engines.flags.EngineFlags).

    The result never raises for an engine that would not start: `plan.fits` is false then and `plan.findings` say why.
    Raises kvbudget.errors.InputError for what cannot be planned at all.
    """
    _check(flags, gpus=gpus, target_concurrency=target_concurrency)
    loaded = model if isinstance(model, LoadedModel) else load(model)
    card, counted = gpus_named(gpu) if gpu is not None else (None, None)
    length = None if max_model_len is None else _length(max_model_len)
    draft, draft_weights = _draft(speculation)
    known = Amount(loaded.weight_bytes, "measured", "weight files") if loaded.weight_bytes is not None else None
    given = _size(weights, "weights")
    request = PlanRequest(
        model=loaded.model,
        engine=engine,
        flags=EngineFlags(max_model_len=length, speculation=draft)._replace(**flags),  # type: ignore[arg-type]
        gpu=card,
        gpus=gpus if gpus is not None else counted,
        gpu_memory=_size(gpu_memory, "gpu_memory"),
        kv_cache_memory=_size(kv_cache_memory_bytes, "kv_cache_memory_bytes"),
        weights=Amount(given, "given", "weights") if given is not None else known,
        activation=_size(activation, "activation"),
        overhead=_size(overhead, "overhead"),
        prompt_lengths=_lengths(prompt_lengths, "prompt_lengths"),
        output_lengths=_lengths(output_lengths, "output_lengths"),
        target_concurrency=target_concurrency,
        margin=_margin(margin),
        draft_weights=draft_weights,
        requests=_requests(requests),
    )
    return make_plan(request)


def _check(flags: Mapping[str, object], **counts: object) -> None:
    """Raise BadValueError for a flag that no engine has, and for values of another type than its own."""
    unknown = sorted(flags.keys() - set(EngineFlags._fields))
    if unknown:
        raise BadValueError(
            f"{', '.join(unknown)[:80]}: no such engine flag", fix=f"known are {', '.join(EngineFlags._fields)}"
        )
    for name, value in {**counts, **flags}.items():
        default = EngineFlags._field_defaults.get(name)
        if isinstance(default, bool) or name in _SWITCHES:
            good, kind = value is None or isinstance(value, bool), "True or False"
        elif isinstance(default, str) or name == "value_cache_dtype":
            good, kind = isinstance(value, str), "text"
        elif name == "gpu_memory_utilization":
            good, kind = value is None or (isinstance(value, int | float) and not isinstance(value, bool)), "a number"
        elif name == "pp_layer_partition":
            good, kind = value is None or isinstance(value, tuple), "a tuple of numbers of layers"
        else:
            good, kind = value is None or type(value) is int, "a whole number"
        if not good:
            raise BadValueError(f"{name}: {str(value)[:40]!r} is not {kind}", fix=f"give {kind}")


def _draft(
    speculation: Speculation | Mapping[str, object] | None,
) -> tuple[Speculation | None, Amount | None]:
    if speculation is None or isinstance(speculation, Speculation):
        return speculation, None
    from kvbudget.edge.hub.speculative import speculation_of

    return speculation_of(speculation)


def _requests(requests: Sequence[Sequence[object]]) -> tuple[tuple[int, int], ...]:
    checked = []
    for request in requests:
        pair = [tokens for tokens in request if type(tokens) is int and 1 <= tokens <= _LONGEST]
        if len(pair) != 2 or len(request) != 2:
            raise BadValueError(
                f"requests: {str(request)[:60]} is not (prompt tokens, output tokens)",
                fix="two whole numbers of at least 1",
            )
        checked.append((pair[0], pair[1]))
    return tuple(checked)


def _size(size: int | str | None, what: str) -> Bytes | None:
    if size is None:
        return None
    if isinstance(size, str):
        return parse_size(size, what)
    if type(size) is not int or not 0 <= size < _LONGEST * _LONGEST:
        raise BadValueError(
            f"{what}: {str(size)[:40]!r} is not a number of bytes", fix='give bytes, or text such as "24GiB"'
        )
    return Bytes(size)


def _length(length: int | str) -> int:
    if isinstance(length, str):
        return AUTO_LENGTH if length == "auto" else parse_length(length, "max_model_len")
    return length


def _lengths(lengths: str | Mapping[str, int] | None, what: str) -> Lengths | None:
    if lengths is None:
        return None
    text = lengths if isinstance(lengths, str) else ",".join(f"{name}={value}" for name, value in lengths.items())
    return parse_lengths(text, what)


def _margin(margin: str | float | int | None) -> Margin | None:
    if isinstance(margin, float) and 0 <= margin < 1:
        return Margin(fraction=margin)
    return None if margin is None else parse_margin(str(margin))
