"""Decides what vLLM's --speculative-config means: the method, its tokens, and the draft model that it names."""

from collections.abc import Mapping

from kvbudget.edge.hub.folder import read_checkpoint
from kvbudget.edge.hub.loaded import weights_beside
from kvbudget.engines.flags import Speculation
from kvbudget.errors import BadValueError
from kvbudget.model.drafts import draft_inside
from kvbudget.model.read import model_from_config
from kvbudget.planner.request import Amount

_MOST_TOKENS = 1024
_MOST_RANKS = 4096
_KEEP_NOTHING = ("medusa", "mlp_speculator")
# vLLM 0.32 config/speculative.py, in its order
_NAMED = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))


def speculation_of(given: Mapping[str, object]) -> tuple[Speculation, Amount | None]:
    """The parsed object, and the weights of the draft where they lie beside its config.json. Raises InputError."""
    method, tokens, reference = given.get("method"), given.get("num_speculative_tokens"), given.get("model")
    if type(tokens) is not int or not 1 <= tokens <= _MOST_TOKENS:
        raise BadValueError(
            f"--speculative-config: num_speculative_tokens is {str(tokens)[:40]!r}",
            fix=f"a whole number from 1 to {_MOST_TOKENS}",
        )
    if not (reference is None or isinstance(reference, str)) or not (method is None or isinstance(method, str)):
        raise BadValueError("--speculative-config: method and model are strings", fix="correct them")
    ranks = given.get("draft_tensor_parallel_size", 0)
    if type(ranks) is not int or not 0 <= ranks <= _MOST_RANKS:
        raise BadValueError(
            f"--speculative-config: draft_tensor_parallel_size is {str(ranks)[:40]!r}",
            fix="1 or the --tensor-parallel-size, as a whole number",
        )
    if reference in ("ngram", "[ngram]"):  # older lines name the method as the model
        method, reference = "ngram", None
    if not reference:
        return Speculation(method or "mtp", tokens, draft_tensor_parallel_size=ranks), None
    checkpoint = read_checkpoint(reference)
    inside = draft_inside(checkpoint.config)
    method = method or inside.method or _method_named(reference)
    if inside.config is None or method in _KEEP_NOTHING:
        return Speculation(method, tokens, draft_tensor_parallel_size=ranks), None
    draft = model_from_config(inside.config, checkpoint.name)
    speculation = Speculation(method, tokens, draft, draft_tensor_parallel_size=ranks)
    return speculation, weights_beside(checkpoint, draft, 2, own_embedding=False)


def _method_named(reference: str) -> str:
    """config/speculative.py: where nothing says the method, the draft's name does."""
    name = reference.lower()
    return next((method for part, method in _NAMED if part in name), "draft_model")
