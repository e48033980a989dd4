"""Decides what a checkpoint's quantization_config says about weight bytes and about the dtype of the KV cache."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from kvbudget.errors import BadConfigError, UnsupportedError

if TYPE_CHECKING:  # only quantised checkpoints need them
    from kvbudget.model.weights.formats import Format
    from kvbudget.model.weights.names import Names
else:  # as strings they would be compiled when this is imported, which costs as much as ten other modules
    Format = Names = object

# vLLM 0.32 `utils/torch_utils.py: get_kv_cache_quant_algo_string`.
_MODELOPT_KV = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}

# Words by which public checkpoints tell their weight format; whole words only, between any separators.
_NAMED = frozenset(
    {f"{kind}FP{bits}" for kind in ("", "NV", "MX") for bits in "468"}
    | {f"INT{bits}" for bits in "2345678"}
    | {f"{bits}BIT" for bits in "2345678"}
    | {"NF4", "AWQ", "GPTQ", "HQQ", "AQLM", "EXL2", "EXL3", "BNB", "AUTOROUND", "SMOOTHQUANT", "BITSANDBYTES"}
    | {"QUANTIZED", "QUANTISED"}
)


class Target(NamedTuple):
    """Which matrices (None: all that no earlier target means) have which format (None: unquantised)."""

    names: Names | None
    format: Format | None


class Quantization(NamedTuple):
    """What was read. `kv_cache_dtype`: "" when the checkpoint prescribes none.

    `targets`: the first that means a matrix decides its format. `weights_unknown` says why weight bytes are not
    computed, "" when they are.
    """

    method: str
    kv_cache_dtype: str
    targets: tuple[Target, ...]
    weights_unknown: str

    def format_of(self, layer: int, name: str) -> "Format | None":
        """The format of one matrix, None for an unquantised one."""
        for target in self.targets:
            if target.names is None or target.names.match(layer, name):
                return target.format
        return None

    def apart(self, layer: int) -> tuple[int, ...]:
        """Equal for layers whose matrices of one name have one format."""
        return tuple([target.names.apart(layer) for target in self.targets if target.names is not None])

    def head_format(self) -> "Format | None":
        """The output head is quantised only where it is named (vLLM 0.32: ParallelLMHead is no LinearBase)."""
        for target in self.targets:
            if target.names is not None and target.names.match(-1, "lm_head"):
                return target.format
        return None


def quantization_of(config: Mapping[str, object], text: Mapping[str, object]) -> Quantization | None:
    """The checkpoint's quantisation, None for a plain one. Raises BadConfigError for a damaged section."""
    section = config.get("quantization_config") or text.get("quantization_config") or config.get("compression_config")
    if section is None or section == {}:
        return None
    if not isinstance(section, dict):
        raise BadConfigError(
            "config.json: quantization_config is not a JSON object", fix="correct or remove quantization_config"
        )
    method = section.get("quant_method", "")
    if not isinstance(method, str):
        raise BadConfigError("config.json: quantization_config.quant_method is not a string", fix="name the method")
    method = method.lower().replace("compressed_tensors", "compressed-tensors")[:40] or _modelopt_method(section)
    targets, unknown = _targets(section, method, text.get("expert_dtype"))
    return Quantization(method, _kv_cache_dtype(section, method), targets, unknown)


def _targets(section: Mapping[str, object], method: str, expert_dtype: object) -> tuple[tuple[Target, ...], str]:
    from kvbudget.model.weights.schemes import targets_of

    try:
        found = targets_of(section, method, expert_dtype)
    except UnsupportedError as error:
        return (), error.message
    return tuple(Target(*pair) for pair in found), ""


def quantisation_named(*names: object) -> str:
    """The first word among `names` that says the weights are quantised, "" when none does. Only strings count."""
    for name in names:
        words = _words(name) if isinstance(name, str) else []
        for number, word in enumerate(words):
            if word.upper() in _NAMED or _is_weights_and_activations(word.upper()):
                return word
            if len(word) == 1 and word in "2345678" and [w.upper() for w in words[number + 1 : number + 2]] == ["BIT"]:
                return f"{word}-{words[number + 1]}"
    return ""


def _words(name: str) -> list[str]:
    """Runs of ASCII letters and digits; no regular expression: to compile one costs every plan half a millisecond."""
    return "".join(c if c.isascii() and c.isalnum() else " " for c in name).split()


def _is_weights_and_activations(word: str) -> bool:
    """W4A16, W8A8, W4A8KV4."""
    weights, found, rest = word.removeprefix("W").partition("A")
    activations, _, cache = rest.partition("KV")
    numbers = [weights, activations, *([cache] if "KV" in rest else [])]
    return word.startswith("W") and bool(found) and all(n.isdecimal() and len(n) < 3 for n in numbers)


def _modelopt_method(section: Mapping[str, object]) -> str:
    """ModelOpt's own hf_quant_config.json names no method (vLLM 0.32 `_normalize_quantization_config`)."""
    producer, inner = section.get("producer"), section.get("quantization")
    if not isinstance(inner, dict) or not isinstance(producer, dict) or producer.get("name") != "modelopt":
        return ""
    algorithm = str(inner.get("quant_algo")).upper()
    return {"NVFP4": "modelopt_fp4"}.get(algorithm, "modelopt" if algorithm.startswith("FP8") else "")


def _kv_cache_dtype(section: Mapping[str, object], method: str) -> str:
    """The dtype that `--kv-cache-dtype auto` becomes in vLLM 0.32 for this checkpoint."""
    inner = section.get("quantization")
    nested = inner if isinstance(inner, dict) else {}
    scheme = next(
        (
            value
            for value in (
                nested.get("kv_cache_scheme"),
                section.get("kv_cache_scheme"),
                nested.get("kv_cache_quant_algo"),
                section.get("kv_cache_quant_algo"),
            )
            if value
        ),
        None,
    )
    if scheme is None:
        return ""
    if method.startswith("modelopt"):
        if isinstance(scheme, str):
            return _MODELOPT_KV.get(scheme.lower(), "")
        if isinstance(scheme, dict) and scheme.get("type") == "float":
            if scheme.get("num_bits") == 8 and scheme.get("dynamic") is False:
                return "fp8_e4m3"
            if scheme.get("num_bits") == 4:
                return "nvfp4"
        return ""
    if method == "compressed-tensors":  # `model_executor/layers/attention/attention.py`: any scheme means fp8
        return "fp8"
    return ""  # read from modelopt and compressed-tensors checkpoints only: the model's own type
