"""Decides how a state of the ledger page becomes a budget to review: the file that `kvbudget plan --write` would write.

It plans the config.json that lies beside it, so that `kvbudget check kvbudget.toml` finds what the page showed;
the page gives that config.json out as well.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from kvbudget import __version__
from kvbudget.edge.budget.file import config_fingerprint
from kvbudget.edge.web.asked import Asked, has_card, plan_asked
from kvbudget.edge.web.catalogue import config_named
from kvbudget.engines.flags import EngineFlags
from kvbudget.errors import BadValueError
from kvbudget.planner.budget.record import DEFAULT_RETREAT, budget_of, budget_text, request_inputs
from kvbudget.planner.paper import precision_named

_BESIDE = "."  # the folder that the file lies in
_FLAGS = {
    "gpu": "gpu", "gpu_memory": "gpu_memory", "utilization": "gpu_memory_utilization", "weights": "weights",
    "activation": "activation", "overhead": "overhead", "prompt_lengths": "prompt_lengths",
    "output_lengths": "output_lengths",
}  # fmt: skip


def config_of(asked: Asked) -> Mapping[str, object]:
    """The config.json of that state. Raises BadValueError for a mere shape, of which there is none."""
    if asked.config is not None:
        return asked.config
    if asked.model:
        return config_named(asked.model)
    raise BadValueError(
        "a shape of layers and heads is no model that could be reviewed",
        fix="choose one of the catalogue, or paste its config.json",
    )


def config_text(asked: Asked) -> bytes:
    """It as a file."""
    return (json.dumps(config_of(asked), indent=2, ensure_ascii=False) + "\n").encode()


def budget_toml(asked: Asked) -> bytes:
    """The reviewed budget as a file. Raises BadValueError without a model or a card."""
    config = config_of(asked)
    if not has_card(asked):
        raise BadValueError("a budget needs the card that it is for", fix="choose a GPU, or give its memory")
    plan = plan_asked(asked)
    document = budget_of(
        plan,
        request_inputs(_BESIDE, _given(asked, plan.request.flags)),
        written=datetime.now(UTC).date().isoformat(),
        written_by=__version__,
        config_sha256=config_fingerprint(config),
        retreat=DEFAULT_RETREAT,
    )
    return budget_text(document).encode()


def _given(asked: Asked, flags: EngineFlags) -> dict[str, object]:
    """The flags of `kvbudget plan` that say the same."""
    fields = asked.fields
    given: dict[str, object] = {flag: fields[name] for name, flag in _FLAGS.items() if fields[name]}
    if fields["utilization"]:
        given["gpu_memory_utilization"] = float(fields["utilization"])
    if asked.target is not None:
        given["target_concurrency"] = asked.target
    if asked.block is not None:
        given["block_size"] = int(asked.block)
    if flags.max_num_seqs is not None:
        given["max_num_seqs"] = flags.max_num_seqs
    return given | {
        "max_model_len": str(asked.context),
        "kv_cache_dtype": precision_named(asked.shape.dtype).flag,
        "tensor_parallel_size": flags.tensor_parallel_size,
    }
