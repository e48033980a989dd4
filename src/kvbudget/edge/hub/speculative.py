"""Decides what vLLM's --speculative-config means: the method, its tokens, and the draft model that it names."""

from collections.abc import Mapping

from kvbudget.edge.hub.folder import Checkpoint, read_checkpoint
from kvbudget.edge.hub.loaded import weights_beside
from kvbudget.engines.flags import Speculation
from kvbudget.errors import BadValueError
from kvbudget.model.drafts import draft_inside, medusa_heads
from kvbudget.model.read import model_from_config
from kvbudget.planner.request import Amount
from kvbudget.units import Bytes

_MOST_TOKENS = 1024
_MOST_RANKS = 4096
_LONGEST_NAME = 4096
_HEADS = ("medusa", "mlp_speculator")
_OWN_CLASS, _TREES, _PARALLEL = "custom_class", "suffix", "dspark"
# vLLM 0.32 config/speculative.py, in its order: a part of the draft's path, architectures, the method
_NAMED: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("eagle-", (), "eagle"),
    ("eagle3", (), "eagle3"),
    ("dflash", ("MuseGlimmerAssistantModel",), "dflash"),
    ("dspark", ("Qwen3DSparkModel", "Qwen3OmniDSparkModel", "Gemma4DSparkModel"), _PARALLEL),
)
_TREE_DEPTH = 24  # suffix_decoding_max_tree_depth
_WITHOUT_DRAFT = ("ngram", "ngram_gpu", _TREES, "extract_hidden_states")


def speculation_of(given: Mapping[str, object]) -> tuple[Speculation, Amount | None]:
    """The parsed object, and the weights of the draft where they lie beside its config.json. Raises InputError."""
    method, reference = given.get("method"), given.get("model")
    if not (reference is None or isinstance(reference, str)) or not (method is None or isinstance(method, str)):
        raise BadValueError("--speculative-config: method and model are strings", fix="correct them")
    if reference is not None and len(reference) > _LONGEST_NAME:
        raise BadValueError("--speculative-config: model is no path", fix="give the folder of the draft")
    asked = Speculation(
        method or "",
        _tokens(given.get("num_speculative_tokens")),
        draft_tensor_parallel_size=_ranks(given.get("draft_tensor_parallel_size", 0)),
        model=reference or "",
        any_vocabulary=_flag(given, "use_heterogeneous_vocab"),
    )
    if reference in ("ngram", "[ngram]"):  # older lines name the method as the model
        asked, reference = asked._replace(method="ngram", model=""), None
    if asked.method == _TREES:
        depth = given.get("suffix_decoding_max_tree_depth", _TREE_DEPTH)
        asked = asked._replace(num_speculative_tokens=asked.num_speculative_tokens or _tokens(depth))
    if reference and (asked.method == _OWN_CLASS or (not asked.method and _is_class_path(reference))):
        return _with_tokens(asked._replace(method=_OWN_CLASS)), None
    if not reference or asked.method in _WITHOUT_DRAFT:
        return _with_tokens(asked), None
    return _with_model(asked, reference)


def _with_model(asked: Speculation, reference: str) -> tuple[Speculation, Amount | None]:
    checkpoint = read_checkpoint(reference)
    inside = draft_inside(checkpoint.config)
    named = asked.method
    method = named or _method_named(reference, checkpoint.config) or inside.method or "draft_model"
    asked = asked._replace(method=method)
    if method == "medusa" and isinstance(checkpoint.config, dict):
        heads = medusa_heads(checkpoint.config, named=bool(named))
        return _with_tokens(asked._replace(heads=heads)), _as_stored(checkpoint)
    if inside.config is None or method in _HEADS:
        predicts = checkpoint.config.get("n_predict") if isinstance(checkpoint.config, dict) else None
        return _with_tokens(asked, predicts), None
    draft = model_from_config(inside.config, checkpoint.name)
    own = draft.draft_predicts
    if method == _PARALLEL:
        own = inside.config.get("block_size", inside.config.get("dspark_block_size"))  # type: ignore[assignment]
    elif method not in ("mtp", "draft_model"):
        own = 0
    return _with_tokens(asked._replace(draft=draft), own), weights_beside(checkpoint, draft, 2, own_embedding=False)


def _as_stored(checkpoint: Checkpoint) -> Amount | None:
    if checkpoint.tensors is None:
        return None
    size = checkpoint.tensors.loaded_bytes(2, quantised=False)
    return Amount(Bytes(size), "measured", f"{checkpoint.tensors.files} safetensors file(s)")


def _with_tokens(asked: Speculation, own: object = None) -> Speculation:
    """`own`: the number that the draft's config.json says, which holds where none was given."""
    if asked.num_speculative_tokens:
        return asked
    if own:
        return asked._replace(num_speculative_tokens=_tokens(own))
    words = "A speculative model was provided, but `num_speculative_tokens` was not provided"
    if not asked.model:
        words = (
            "num_speculative_tokens must be provided with speculative model unless the draft model config contains an "
            "n_predict parameter."
        )
    raise BadValueError(f"--speculative-config: {words}", fix=f"a whole number from 1 to {_MOST_TOKENS}")


def _tokens(given: object) -> int:
    """0 where none were given."""
    if given is None:
        return 0
    if type(given) is not int or not 1 <= given <= _MOST_TOKENS:
        raise BadValueError(
            f"--speculative-config: num_speculative_tokens is {str(given)[:40]!r}",
            fix=f"a whole number from 1 to {_MOST_TOKENS}",
        )
    return given


def _ranks(given: object) -> int:
    if type(given) is not int or not 0 <= given <= _MOST_RANKS:
        raise BadValueError(
            f"--speculative-config: draft_tensor_parallel_size is {str(given)[:40]!r}",
            fix="1 or the --tensor-parallel-size, as a whole number",
        )
    return given


def _flag(given: Mapping[str, object], name: str) -> bool:
    value = given.get(name)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise BadValueError(f"--speculative-config: {name} is {str(value)[:40]!r}", fix="true or false")


def _is_class_path(reference: str) -> bool:
    """config/speculative.py: _is_custom_proposer_path: "my.module.Proposer"."""
    parts = reference.split(".")
    return "/" not in reference and len(parts) > 1 and all(part.isidentifier() for part in parts)


def _method_named(reference: str, config: object) -> str:
    """config/speculative.py: where nothing says the method, the draft's path or its architecture may."""
    path = reference.lower()
    named = config.get("architectures") if isinstance(config, dict) else None
    listed = named if isinstance(named, list) else []
    return next((method for part, names, method in _NAMED if part in path or any(n in listed for n in names)), "")
