"""Decides what vLLM's speculative methods need, and when it would refuse them.

vLLM 0.32 `config/speculative.py`: __post_init__, _verify_args, verify_equal_vocab_size_if_draft_model.
"""

from kvbudget.engines.flags import Settings, Speculation
from kvbudget.engines.rule import Refusal
from kvbudget.errors import BadValueError, UnsupportedError
from kvbudget.model.read import Model

# methods by where their draft tokens come from
_WITHOUT_MODEL = ("ngram", "ngram_gpu", "suffix")
_HEADS_ALONE = ("medusa", "mlp_speculator")  # weights, and no cache
_WITHOUT_CACHE = (*_WITHOUT_MODEL, *_HEADS_ALONE, "custom_class")
_DRAFTS = ("eagle", "eagle3", "draft_model", "dflash", "dspark")
_NO_MODEL = "num_speculative_tokens was provided but without speculative model."
_SHARING_STAGES = "leave --pipeline-parallel-size out, or speculate with eagle, eagle3, mtp or ngram"


def settled(model: Model, asked: Speculation, *, exact: bool) -> Speculation:
    """The method by its present name, with the draft that it needs. `exact`: the version that was read; older ones took
    a method that is not named for the model's own module.

    Raises BadValueError and UnsupportedError for what no start could use.
    """
    method = "mtp" if asked.method.endswith("_mtp") else asked.method
    if not method:
        if exact or not model.draft_layers:
            raise BadValueError(f"--speculative-config: {_NO_MODEL}", fix='name the method, "method": "mtp" for one')
        method = "mtp"
    if method == "draft_model" and asked.draft is not None and asked.draft.draft_layers:
        method = "mtp"  # hf_config_override makes an MTP module of every model that has one
    if method in _HEADS_ALONE and not asked.model:
        raise BadValueError(
            f"--speculative-config method {method}: {_NO_MODEL}", fix='add "model": "FOLDER" of its heads to it'
        )
    if method == "custom_class" and not asked.model:
        raise BadValueError(
            "--speculative-config: method='custom_class' requires 'model' to contain the custom proposer module path "
            "(e.g., 'my_module.MyProposer').",
            fix='add "model": "MODULE.CLASS" to it',
        )
    if method in _WITHOUT_CACHE:
        return asked._replace(method=method, draft=None)
    if method == "mtp":
        return _module(model, asked._replace(method=method))
    if method in _DRAFTS:
        if asked.draft is None:
            raise BadValueError(
                f"--speculative-config method {method} needs a draft model", fix='add "model": "FOLDER" to it'
            )
        return asked._replace(method=method)
    if method == "extract_hidden_states":
        raise UnsupportedError(
            "--speculative-config method extract_hidden_states: vLLM keeps the hidden states in the pool, in a group "
            "of their own, and what that takes is not computed here",
            fix="plan without it, and compare with a start-up log: kvbudget receipt",
        )
    raise UnsupportedError(
        f"--speculative-config: method {method[:40]!r} is unknown",
        fix=f"use one of {', '.join((*_WITHOUT_CACHE, 'mtp', *_DRAFTS))}",
    )


def _module(model: Model, asked: Speculation) -> Speculation:
    if asked.draft is None and not model.draft_layers:
        raise UnsupportedError(
            f"--speculative-config method mtp: {model.model_type} has no multi-token-prediction module that is known "
            "here",
            fix="give its draft model's folder as model, or leave --speculative-config out",
        )
    modules = len((asked.draft or model).draft_layers)
    # config/speculative.py: use_multi_module_mtp
    return asked._replace(modules=min(modules or 1, asked.num_speculative_tokens))


def speculation_refusals(model: Model, settings: Settings, asked: Speculation, *, exact: bool) -> list[Refusal]:
    """In the order in which the engine would meet them. `exact`: the version whose models are all known."""
    return [
        *_architecture_refusals(asked, exact=exact),
        *_token_refusals(model, asked),
        *_rank_refusals(settings, asked),
        *_vocabulary_refusals(model, asked),
        *_stage_refusals(settings, asked),
    ]


def _architecture_refusals(asked: Speculation, *, exact: bool) -> list[Refusal]:
    if asked.method != "mlp_speculator" or not exact:
        return []
    return [
        Refusal(
            "architecture_unsupported",
            "Model architectures ['MLPSpeculatorPreTrainedModel'] are not supported for now.",
            "speculate with eagle3, mtp or ngram",
        )
    ]


def _token_refusals(model: Model, asked: Speculation) -> list[Refusal]:
    if asked.method != "mtp":
        return []
    tokens, at_once = asked.num_speculative_tokens, (asked.draft or model).draft_predicts
    if not 0 < at_once < tokens or tokens % at_once == 0:
        return []
    return [
        Refusal(
            "draft_tokens_not_divisible",
            f"num_speculative_tokens:{tokens} must be divisible by n_predict={at_once}",
            f"use {tokens // at_once * at_once} as num_speculative_tokens of --speculative-config",
        )
    ]


def _rank_refusals(settings: Settings, asked: Speculation) -> list[Refusal]:
    ranks, wanted = settings.tensor_parallel_size, asked.draft_tensor_parallel_size
    if wanted in (0, 1, ranks):  # _verify_and_get_draft_tp
        return []
    return [
        Refusal(
            "draft_tensor_parallel",
            f"speculative_draft_tensor_parallel_size={wanted} cannot be other value than 1 or target model "
            "tensor_parallel_size",
            f"leave draft_tensor_parallel_size out of --speculative-config, or give {ranks}",
        )
    ]


def _vocabulary_refusals(model: Model, asked: Speculation) -> list[Refusal]:
    if asked.any_vocabulary:
        if asked.method == "draft_model":
            return []
        return [
            Refusal(
                "draft_vocabulary_differs",
                "use_heterogeneous_vocab only works with method='draft_model'",
                "leave use_heterogeneous_vocab out of --speculative-config",
            )
        ]
    if asked.method != "draft_model" or asked.draft is None or not model.vocab_size:
        return []
    if asked.draft.vocab_size in (0, model.vocab_size):
        return []
    return [
        Refusal(
            "draft_vocabulary_differs",
            f"Target and draft model should have the same vocabulary size. Target model vocab_size={model.vocab_size}. "
            f"Draft model vocab_size={asked.draft.vocab_size}. Using models with different tokenizers can cause "
            "out-of-bounds errors during speculative decoding.",
            'take a draft of the same family, or add "use_heterogeneous_vocab": true to --speculative-config',
        )
    ]


def _stage_refusals(settings: Settings, asked: Speculation) -> list[Refusal]:
    """The draft is built on the last stage alone (v1/worker/gpu/model_runner.py), by a model class that takes its
    layers and its input from the pipeline group of all stages (models/utils.py: make_layers, get_pp_group): it has only
    the last part of its layers there, and its first run, when memory is profiled, finds no input."""
    if asked.method != "draft_model" or settings.pipeline_parallel_size == 1:
        return []
    return [
        Refusal(
            "draft_model_pipeline",
            "AssertionError: assert intermediate_tensors is not None (the draft model runs on the last pipeline stage "
            "alone, and waits there for the output of a stage before it)",
            _SHARING_STAGES,
        )
    ]
