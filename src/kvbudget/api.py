"""Planning from Python: `from kvbudget import load, plan`. Decides how plain arguments become a request.

Sizes are bytes (int) or text with a unit ("24GiB"); lengths are tokens (int) or text ("8k", "auto"). All results are
per GPU. A model that is read once plans thousands of times: one plan takes a fraction of a millisecond.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from kvbudget.edge.hub.folder import read_checkpoint
from kvbudget.edge.hub.loaded import weights_beside
from kvbudget.engines.flags import AUTO_LENGTH, EngineFlags, Speculation
from kvbudget.engines.registry import DEFAULT_ENGINE
from kvbudget.errors import BadValueError
from kvbudget.model.drafts import MedusaHeads
from kvbudget.model.read import Model, model_from_config
from kvbudget.planner.build import make_plan
from kvbudget.planner.document import plan_json
from kvbudget.planner.hardware.gpus import gpus_named
from kvbudget.planner.overrides import with_overrides
from kvbudget.planner.request import Amount, Plan, PlanRequest
from kvbudget.planner.sizes import memory_size
from kvbudget.planner.spread import over_all_cards
from kvbudget.planner.workload.lengths import Lengths, parse_lengths
from kvbudget.planner.workload.margin import Margin, parse_margin
from kvbudget.units import Bytes, parse_length

if TYPE_CHECKING:
    from kvbudget.planner.advice.solve import Solved

_LONGEST = 2**31
_SWITCHES = ("async_scheduling", "enable_prefix_caching", "enable_chunked_prefill", "kv_unified", "flash_attention")

__all__ = ["LoadedModel", "load", "plan", "plan_json", "solve"]


class LoadedModel(NamedTuple):
    """A model's structure, and the bytes of its weight files where they lie beside config.json (None where not).

    `weight_bytes`: of the whole checkpoint in 16-bit types; `weights_doubt`: why these files may be others, or "".
    """

    model: Model
    weight_bytes: Bytes | None = None
    weights_doubt: str = ""


def load(
    reference: str | Mapping[str, object],
    *,
    name: str = "",
    assume: str = "",
    hf_overrides: Mapping[str, object] | None = None,
) -> LoadedModel:
    """Read a folder, a config.json, a .gguf, a hub id ("owner/model@revision"), or a parsed config.json.

    `assume="full"` reads an unknown architecture as full attention. `hf_overrides` is set in config.json before it is
    read, as vLLM's --hf-overrides. Raises kvbudget.errors.InputError (BadConfigError,
    BadValueError, UnsupportedError) with what is wrong and what to do next.
    """
    _text(name, "name")
    _text(assume, "assume")
    if not isinstance(reference, str | Mapping):
        raise BadValueError(
            f"model: {str(reference)[:40]!r} is neither a reference nor a config.json",
            fix="give a folder, a file, a hub id, or a parsed config.json as a mapping",
        )
    overrides = {} if hf_overrides is None else hf_overrides
    if not isinstance(overrides, Mapping):
        raise BadValueError(
            f"hf_overrides: {str(overrides)[:40]!r} is no mapping", fix='write {"max_position_embeddings": 131072}'
        )
    if not isinstance(reference, str):
        return LoadedModel(model_from_config(with_overrides(dict(reference), overrides), name, assume))
    checkpoint = read_checkpoint(reference)
    model = model_from_config(with_overrides(checkpoint.config, overrides), name or checkpoint.name, assume)
    weights = weights_beside(checkpoint, model, 2)
    return LoadedModel(model, weights.bytes, weights.doubt) if weights else LoadedModel(model)


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
    prompt_lengths: int | str | Mapping[str, int] | None = None,
    output_lengths: int | str | Mapping[str, int] | None = None,
    target_concurrency: int | None = None,
    requests: Sequence[tuple[int, int]] = (),
    margin: str | float | int | None = None,
    speculation: Speculation | Mapping[str, object] | None = None,
    **flags: object,
) -> Plan:
    """Plan the KV cache of `model` (see `load`) on a card.

    Give `gpu` ("h100", "h100:8"), or `gpu_memory` of one card, or the pool itself as `kv_cache_memory_bytes`.
    `weights` are those of the whole checkpoint; `activation` and `overhead` are per GPU. Lengths are
    "p50=800,p95=4000,p99=8000" or {"p50": 800, ...}, or one number for all; or give real `requests`, (prompt, output)
    tokens each. `margin` is "5%", 0.05 or a number of blocks. `speculation` is vLLM's --speculative-config as a
    mapping. `flags` are the engine's, by vLLM's names with underscores: tensor_parallel_size=2, kv_cache_dtype="fp8",
    block_size=32, ... (the fields of kvbudget.engines.flags.EngineFlags).

    The result never raises for an engine that would not start: `plan.fits` is false then and `plan.findings` say why.
    Raises kvbudget.errors.InputError for what cannot be planned at all.
    """
    _check(flags, gpus=gpus, target_concurrency=target_concurrency)
    loaded = _loaded(model)
    _text(engine, "engine")
    if gpu is not None:
        _text(gpu, "gpu")
    card, counted = gpus_named(gpu) if gpu is not None else (None, None)
    length = None if max_model_len is None else _length(max_model_len)
    draft, draft_weights = _draft(speculation)
    known = None
    if loaded.weight_bytes is not None:
        known = Amount(loaded.weight_bytes, "measured", "weight files", doubt=loaded.weights_doubt)
    given = _size(weights, "weights")
    cards = gpus if gpus is not None else counted
    said = EngineFlags(max_model_len=length, speculation=draft)._replace(**flags)  # type: ignore[arg-type]
    request = PlanRequest(
        model=loaded.model,
        engine=engine,
        flags=over_all_cards(engine, said, cards, card, said="pipeline_parallel_size" in flags),
        gpu=card,
        gpus=cards,
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


def solve(planned: Plan, goal: str, *, concurrency: int | None = None, length: int | None = None) -> "Solved":
    """The largest or smallest value of one input that still carries `concurrency` requests of `length` tokens at once.

    `goal`: "max-model-len", "max-num-seqs", "concurrency", "gpu-memory-utilization", "kv-cache-memory-bytes" (bytes per
    GPU) or "gpus". Everything else is as it was planned, margin included. `concurrency` is the plan's
    target_concurrency where it is not given, else 1; `length` is the p95 of the plan's lengths, or max_model_len where
    it has none (0 means that too). With data_parallel_size counts are of all engines together. The answer is checked by
    planning: `plan` of the result is the plan with it; `value` is None where no value will do, and `note` says why.
    Raises kvbudget.errors.BadValueError.
    """
    from kvbudget.planner.advice.goals import GOALS, solved, wish_of
    from kvbudget.planner.workload.margin import NO_MARGIN

    _text(goal, "goal")
    if goal not in GOALS:
        raise BadValueError(f"goal: {goal[:40]!r} is no goal", fix=f"one of {', '.join(GOALS)}")
    for name, value, least in (("concurrency", concurrency, 1), ("length", length, 0)):
        if value is not None and (type(value) is not int or not least <= value <= _LONGEST):
            raise BadValueError(f"{name}: {str(value)[:40]!r} is out of range", fix=f"a whole number from {least}")
    return solved(planned, goal, wish_of(planned, concurrency, length, planned.request.margin or NO_MARGIN))


# Fields of EngineFlags by what they take; those that are not named are whole numbers. `None` is a value only where it
# is the default.
_NUMBERS = ("gpu_memory_utilization",)
_TEXTS = ("value_cache_dtype",)


def _check(flags: Mapping[str, object], **counts: object) -> None:
    """Raise BadValueError for a flag that no engine has, and for values of another type than its own."""
    unknown = sorted(flags.keys() - set(EngineFlags._fields))
    if unknown:
        raise BadValueError(f"{', '.join(unknown)[:80]}: no such argument", fix=_meant(unknown))
    for name, value in {**counts, **flags}.items():
        default = EngineFlags._field_defaults.get(name)
        if isinstance(default, bool) or name in _SWITCHES:
            good, kind = isinstance(value, bool), "True or False"
        elif isinstance(default, str) or name in _TEXTS:
            good, kind = isinstance(value, str), "text"
        elif name in _NUMBERS:
            good, kind = isinstance(value, int | float) and not isinstance(value, bool), "a number"
        elif name == "pp_layer_partition":
            good = isinstance(value, tuple) and all(type(layers) is int for layers in value)
            kind = "a tuple of numbers of layers"
        elif name == "tensor_split":
            kind = "a tuple of shares, of at least 0"
            good = isinstance(value, tuple) and all(type(one) in (int, float) and 0 <= one < inf for one in value)
        else:
            good, kind = type(value) is int, "a whole number"
        if not good and not (value is None and default is None):
            raise BadValueError(f"{name}: {str(value)[:40]!r} is not {kind}", fix=f"give {kind}")


# As engines' short flags are written.
_SHORT = {
    "tp": "tensor_parallel_size", "pp": "pipeline_parallel_size", "dcp": "decode_context_parallel_size",
    "dp": "data_parallel_size", "tensor_parallel": "tensor_parallel_size", "max_seq_len": "max_model_len",
    "context_length": "max_model_len", "ctx_size": "max_model_len", "mem_fraction_static": "gpu_memory_utilization",
    "max_running_requests": "max_num_seqs", "max_batch_size": "max_num_seqs", "speculative_config": "speculation",
    "kv_cache_memory": "kv_cache_memory_bytes", "vram": "gpu_memory",
}  # fmt: skip


def _meant(unknown: Sequence[str]) -> str:
    """What was probably meant; all names only where nothing is near."""
    import difflib
    import inspect

    own = [name for name, one in inspect.signature(plan).parameters.items() if one.kind is one.KEYWORD_ONLY]
    known = [*own, *EngineFlags._fields]
    near: list[str] = []
    for name in unknown:
        word = name.lower().strip("-_").replace("-", "_")
        near += [_SHORT[word]] if word in _SHORT else difflib.get_close_matches(word[:64], known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {', '.join(dict.fromkeys(near))}?"
    return f"known are {', '.join(dict.fromkeys(known))}"


def _text(value: object, name: str) -> None:
    if not isinstance(value, str):
        raise BadValueError(f"{name}: {str(value)[:40]!r} is not text", fix="give text")


def _loaded(model: object) -> LoadedModel:
    if isinstance(model, LoadedModel):
        if not isinstance(model.model, Model):
            raise BadValueError("model: this LoadedModel holds no model", fix="give what load() returned")
        return model
    return load(model)  # type: ignore[arg-type] # it refuses what it cannot read


def _draft(
    speculation: Speculation | Mapping[str, object] | None,
) -> tuple[Speculation | None, Amount | None]:
    if speculation is None:
        return None, None
    if isinstance(speculation, Speculation):
        parts: tuple[object, ...] = speculation
        method, tokens, draft, modules, ranks, path, heads, any_vocabulary = parts
        named = isinstance(method, str) and isinstance(path, str) and (draft is None or isinstance(draft, Model))
        named = named and isinstance(any_vocabulary, bool) and (heads is None or isinstance(heads, MedusaHeads))
        if not named or any(type(number) is not int for number in (tokens, modules, ranks)):
            raise BadValueError(
                f"speculation: {str(speculation)[:80]} is not a method, a number of tokens and a draft model",
                fix='write {"method": "eagle3", "num_speculative_tokens": 3, "model": "FOLDER"}',
            )
        given = {"method": method, "num_speculative_tokens": tokens}
        _draft(given)  # it refuses what no engine would take
        return speculation, None
    if not isinstance(speculation, Mapping):
        raise BadValueError(
            f"speculation: {str(speculation)[:40]!r} is no mapping",
            fix='write {"method": "eagle3", "num_speculative_tokens": 3, "model": "FOLDER"}',
        )
    from kvbudget.edge.hub.speculative import speculation_of

    return speculation_of(speculation)


def _requests(requests: Sequence[Sequence[object]]) -> tuple[tuple[int, int], ...]:
    if not isinstance(requests, list | tuple):
        raise BadValueError(
            f"requests: {str(requests)[:60]!r} is no list", fix="give a list of (prompt tokens, output tokens)"
        )
    checked = []
    for request in requests:
        pair = request if isinstance(request, list | tuple) else ()
        good = [tokens for tokens in pair if type(tokens) is int and 1 <= tokens <= _LONGEST]
        if len(pair) != 2 or len(good) != 2:
            raise BadValueError(
                f"requests: {str(request)[:60]} is not (prompt tokens, output tokens)",
                fix="two whole numbers of at least 1",
            )
        checked.append((good[0], good[1]))
    return tuple(checked)


def _size(size: int | str | None, what: str) -> Bytes | None:
    if size is None:
        return None
    if not isinstance(size, str) and (type(size) is not int or not 0 <= size < _LONGEST * _LONGEST):
        raise BadValueError(
            f"{what}: {str(size)[:40]!r} is not a number of bytes", fix='give bytes, or text such as "24GiB"'
        )
    return memory_size(size, what)


def _length(length: int | str) -> int:
    if isinstance(length, str):
        return AUTO_LENGTH if length in ("auto", "-1") else parse_length(length, "max_model_len")
    if type(length) is not int:
        raise BadValueError(
            f"max_model_len: {str(length)[:40]!r} is no number of tokens",
            fix='give tokens, or text such as "8k" or "auto"',
        )
    return length


def _lengths(lengths: int | str | Mapping[str, int] | None, what: str) -> Lengths | None:
    if lengths is None:
        return None
    if type(lengths) is int:
        lengths = str(lengths)
    if not isinstance(lengths, str | Mapping):
        raise BadValueError(
            f"{what}: {str(lengths)[:40]!r} are no percentiles",
            fix='write "p50=800,p95=4000" or {"p50": 800, "p95": 4000}',
        )
    text = lengths if isinstance(lengths, str) else ",".join(f"{name}={value}" for name, value in lengths.items())
    return parse_lengths(text, what)


def _margin(margin: str | float | int | None) -> Margin | None:
    if isinstance(margin, float) and 0 <= margin < 1:
        return Margin(fraction=margin)
    return None if margin is None else parse_margin(str(margin))
