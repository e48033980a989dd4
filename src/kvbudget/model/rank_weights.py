"""Decides how many bytes of a model's weights one rank holds, from the count of its parameters."""

from functools import lru_cache
from typing import TYPE_CHECKING

from kvbudget.model.parameters import Parameters
from kvbudget.model.quantization import Quantization
from kvbudget.model.same import Same
from kvbudget.model.weights.matrices import LayerWeights, Matrix
from kvbudget.units import Bytes

if TYPE_CHECKING:
    from kvbudget.model.weights.formats import Format

_COUNTS_KEPT = 256  # results for one model and one split each


def weights_on_rank(
    parameters: Parameters,
    quantization: Quantization | None,
    first: int,
    end: int,
    tensor_parallel: int,
    element_bytes: int,
) -> Bytes:
    """Bytes on one rank of the pipeline stage that holds layers first..end (end exclusive).

    `element_bytes`: of the type in which unquantised weights are loaded. The first stage has the embedding, the last
    one the head (a copy of the embedding when tied) and the last norm; a vision part is on every stage. What an engine
    makes beside the weights while it loads them (rotary tables, MLA's absorbed matrices) is part of it.
    """
    stored = _stored_on_rank(parameters, quantization, first, end, tensor_parallel, element_bytes)
    return Bytes(stored + _made_on_rank(parameters, first, end, tensor_parallel, element_bytes))


def _stored_on_rank(
    parameters: Parameters,
    quantization: Quantization | None,
    first: int,
    end: int,
    tensor_parallel: int,
    element_bytes: int,
) -> int:
    split, whole = parameters.encoder
    size = 0
    if first == 0:
        split += parameters.embedding + parameters.tables
        whole += parameters.positions
    if end == len(parameters.layers):
        whole += parameters.top_whole
        split += parameters.head_bias
        if parameters.head is not None:
            stored = quantization.head_format() if quantization else None
            size += _matrix_bytes(parameters.head, stored, tensor_parallel, element_bytes)
        elif first:
            split += parameters.embedding
    size += -(-split * element_bytes // tensor_parallel) + whole * element_bytes
    return size + _layer_bytes(parameters.layers, first, end, 0, quantization, tensor_parallel, element_bytes)


def _made_on_rank(parameters: Parameters, first: int, end: int, tensor_parallel: int, element_bytes: int) -> int:
    copies = sum(layer.second_copy for layer in parameters.layers[first:end])
    return (parameters.tables_of_rotation - (-copies // tensor_parallel)) * element_bytes


def experts_spread(parameters: Parameters, data_parallel: int) -> Parameters:
    """What one of several data-parallel engines holds: experts are shared out over all of their ranks, all else is not.

    vLLM 0.32 `model_executor/layers/fused_moe/config.py`: experts are split over tensor x data parallel ranks, whole
    ones with expert parallelism, slices of each without.
    """
    return parameters if data_parallel == 1 else _spread(Same(parameters), data_parallel)


@lru_cache(maxsize=_COUNTS_KEPT)
def _spread(same: "Same[Parameters]", data_parallel: int) -> Parameters:
    parameters = same.value
    layers = []
    for layer in parameters.layers:
        matrices = tuple(
            m._replace(copies=-(-m.copies // data_parallel)) if ".experts." in m.name else m for m in layer.matrices
        )
        layers.append(layer._replace(matrices=matrices))
    return parameters._replace(layers=tuple(layers))


def draft_on_rank(
    parameters: Parameters, quantization: Quantization | None, tensor_parallel: int, element_bytes: int
) -> Bytes:
    """Bytes of the built-in draft module on one rank of the last stage, when speculation with it is asked for."""
    count = len(parameters.layers)
    drafts = parameters.drafts
    return Bytes(_layer_bytes(drafts, 0, len(drafts), count, quantization, tensor_parallel, element_bytes))


def draft_fraction(parameters: Parameters, quantization: Quantization | None, element_bytes: int) -> tuple[int, int]:
    """(bytes of the draft module, bytes of the whole checkpoint with it), for checkpoints that tell only a total."""
    part = draft_on_rank(parameters, quantization, 1, element_bytes)
    count = len(parameters.layers)
    return part, part + _stored_on_rank(parameters, quantization, 0, count, 1, element_bytes)


def share_of_checkpoint(
    parameters: Parameters,
    quantization: Quantization | None,
    checkpoint_bytes: int,
    first: int,
    end: int,
    tensor_parallel: int,
    element_bytes: int,
    data_parallel: int = 1,
) -> Bytes:
    """A rank's part of a checkpoint of known size, in the proportion that the count gives, and what is made beside it.

    What every rank holds whole is not divided. `checkpoint_bytes` is without the draft module.
    """
    everything = _stored_on_rank(parameters, quantization, 0, len(parameters.layers), 1, element_bytes)
    parameters = experts_spread(parameters, data_parallel)
    part = _stored_on_rank(parameters, quantization, first, end, tensor_parallel, element_bytes)
    made = _made_on_rank(parameters, first, end, tensor_parallel, element_bytes)
    return Bytes(-(-checkpoint_bytes * part // everything) + made)


def even_share(
    parameters: Parameters | None, layers: int, given_bytes: int, first: int, end: int, tensor_parallel: int
) -> Bytes:
    """A rank's part of a size that a person gave: the stage's part by parameters, divided evenly over the ranks.

    Without a count (`parameters` None) every one of the `layers` counts the same.
    """
    if parameters is None:
        part, whole = end - first, layers
    else:
        part = _stored_on_rank(parameters, None, first, end, 1, 1)
        whole = _stored_on_rank(parameters, None, 0, layers, 1, 1)
    return Bytes(-(-given_bytes * part // (whole * tensor_parallel)))


def _layer_bytes(
    layers: tuple[LayerWeights, ...],
    first: int,
    end: int,
    offset: int,
    quantization: Quantization | None,
    tensor_parallel: int,
    element_bytes: int,
) -> int:
    """Bytes of layers first..end on one rank; `offset` is added to their number in the checkpoint's names."""
    return _counted_bytes(Same(layers), first, end, offset, Same(quantization), tensor_parallel, element_bytes)


@lru_cache(maxsize=_COUNTS_KEPT)
def _counted_bytes(
    same_layers: "Same[tuple[LayerWeights, ...]]",
    first: int,
    end: int,
    offset: int,
    same_quantization: "Same[Quantization | None]",
    tensor_parallel: int,
    element_bytes: int,
) -> int:
    layers, quantization = same_layers.value, same_quantization.value
    known: dict[tuple[object, ...], int] = {}
    size = 0
    for index in range(first, end):
        layer = layers[index]
        key = (id(layer), quantization.apart(offset + index) if quantization is not None else None)
        if key not in known:
            own = layer.whole * element_bytes
            own += -(-layer.split * element_bytes // tensor_parallel)
            for matrix in layer.matrices:
                stored = quantization.format_of(offset + index, matrix.name) if quantization is not None else None
                own += _matrix_bytes(matrix, stored, tensor_parallel, element_bytes)
            known[key] = own
        size += known[key]
    return size


def _matrix_bytes(matrix: Matrix, stored: "Format | None", tensor_parallel: int, element_bytes: int) -> int:
    if stored is not None:
        size = stored.size(matrix.rows, matrix.columns) * matrix.copies
    else:
        size = matrix.parameters * element_bytes
    return -(-size // matrix.sharers(tensor_parallel))
