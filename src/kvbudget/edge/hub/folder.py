"""Decides which files a MODEL argument means, and reads its config: a folder, a config.json, a .gguf, or a hub id."""

import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from kvbudget.edge.hub.safetensors import Tensors, tensors_in
from kvbudget.errors import BadConfigError, BadValueError, printable

MAX_JSON_BYTES = 4 * 1024**2  # the largest published config.json has some 70 kB
MAX_TEXT_CHARS = 1000  # of a string in it; those of published ones have less than 300
_CONFIG = "config.json"
_MODELOPT = "hf_quant_config.json"
_OF_COMMANDS = (".yaml", ".yml", ".sh", ".bash", ".service", ".txt", ".env")  # as edge.launch.read takes them
_TEXT_SECTIONS = ("text_config", "llm_config", "language_config")


class Checkpoint(NamedTuple):
    """What was found. `config` is parsed JSON, still unchecked; `tensors` None when no weights are beside it.

    `source`: folder, file, gguf, cache (of the hub) or hub. `revision`: the hub's commit, "" for local paths.
    `content`: the bytes of config.json, for GGUF what its metadata says.
    """

    name: str
    config: object
    tensors: Tensors | None
    source: str = "folder"
    revision: str = ""
    content: bytes = b""

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the content, and of the revision when there is one: the same wherever the same model was read."""
        from hashlib import sha256  # not part of a plan, whose start-up time is counted

        return sha256(self.content + (b"@" + self.revision.encode() if self.revision else b"")).hexdigest()

    @property
    def gguf(self) -> bool:
        """Whether it is a GGUF file."""
        return self.source == "gguf"


def read_checkpoint(model: str, environment: Mapping[str, str] | None = None, *, weights: bool = True) -> Checkpoint:
    """Read MODEL. `environment` (default: the process's) says where the hub and its cache are.

    Without `weights` a checkpoint's weight files are left alone: their size is known from elsewhere.

    Raises BadValueError for what is not there or cannot be reached, BadConfigError for damaged files, UnsupportedError
    for a GGUF architecture that is not known.
    """
    if os.path.isdir(model):
        if not os.path.isfile(os.path.join(model, _CONFIG)):
            raise _without_config(model)
        return _local(model, os.path.join(model, _CONFIG), "folder", weights=weights)
    if os.path.isfile(model):
        if model.lower().endswith(".gguf"):
            return _gguf(model)
        try:
            return _local(os.path.dirname(os.path.abspath(model)), model, "file", weights=weights)
        except BadConfigError as error:
            raise _other_file(model) or error from None
    if not model.startswith((".", "/", "~")) and not model.lower().endswith(".gguf") and model.count("/") == 1:
        return _hub(model, os.environ if environment is None else environment, weights=weights)
    raise BadValueError(
        f"MODEL: {_shown(model)} does not exist",
        fix="give a folder with config.json, a config.json, a .gguf, or a hub id (owner/model)",
    )


def _local(folder: str, path: str, source: str, revision: str = "", *, weights: bool) -> Checkpoint:
    data = _read(path)
    config = _parsed(data, path)
    beside = os.path.join(folder, _MODELOPT)
    if isinstance(config, dict) and not config.get("quantization_config") and os.path.isfile(beside):
        # ModelOpt writes the quantisation beside config.json; vLLM 0.32 transformers_utils/config.py reads it too.
        config["quantization_config"] = read_json(beside)
    clean(config)
    name = _shown(_name_of(os.path.abspath(folder)))
    tensors = tensors_in(folder, _layers(config)) if weights else None
    return Checkpoint(name, config, tensors, source, revision, data)


def _gguf(path: str) -> Checkpoint:
    from kvbudget.edge.hub.gguf import read_gguf

    config, tensors = read_gguf(path)
    name = _shown(os.path.basename(path))[: -len(".gguf")]
    return Checkpoint(name, config, tensors, "gguf", content=json.dumps(config, sort_keys=True).encode())


def _hub(text: str, environment: Mapping[str, str], *, weights: bool) -> Checkpoint:
    from kvbudget.edge.hub.hub import cached_folder, fetch, parse_hub_id, quantization_beside

    model = parse_hub_id(text)
    if model is None:
        raise BadValueError(
            f"MODEL: {_shown(text)} is neither a local path nor a hub id", fix="a hub id is owner/model[@revision]"
        )
    folder = cached_folder(model, environment)
    if folder is not None:
        return _local(folder, os.path.join(folder, _CONFIG), "cache", os.path.basename(folder), weights=weights)
    found = fetch(model, environment, lambda data: _layers(_parsed(data, _CONFIG)))
    config = _parsed(found.config, _CONFIG)
    if isinstance(config, dict) and not config.get("quantization_config"):
        beside = quantization_beside(found.quantization)
        if beside is not None:
            config["quantization_config"] = beside
    clean(config)
    return Checkpoint(model.name, config, found.tensors, "hub", found.revision, found.config)


def _layers(config: object) -> int | None:
    """How many layers the model itself has, to tell its draft module's apart; None when config.json does not say."""
    if not isinstance(config, dict):
        return None
    for part in (config, *(config.get(key) for key in _TEXT_SECTIONS)):
        count = part.get("num_hidden_layers") if isinstance(part, dict) else None
        if type(count) is int and count > 0:
            return count
    return None


def _without_config(folder: str) -> BadValueError:
    try:
        files = sorted(name for name in os.listdir(folder) if name.lower().endswith(".gguf"))
    except OSError:
        files = []
    if files:
        return BadValueError(
            f"MODEL: {_shown(folder)} has no {_CONFIG}, but GGUF files", fix=f"give one: {_shown(files[0])}"
        )
    return BadValueError(
        f"MODEL: {_shown(folder)} has no {_CONFIG}", fix="give the folder of a Hugging Face checkpoint"
    )


def _other_file(path: str) -> BadConfigError | None:
    """What to do with a file that could not be read as a config.json, where its name tells that it is none."""
    name = path.lower()
    for endings, what, fix in (
        (_OF_COMMANDS, "may hold the command that starts the engine", f"give it as --command {_shown(path)}"),
        ((".safetensors", ".bin", ".pt", ".pth"), "holds weights", f"give the folder with its {_CONFIG}"),
        ((".toml",), "may be a reviewed budget", f"kvbudget check {_shown(path)} reads one"),
    ):
        if name.endswith(endings):
            return BadConfigError(f"MODEL: {_shown(path)} is no {_CONFIG}; by its name it {what}", fix=fix)
    return None


def _name_of(folder: str) -> str:
    """The folder's own name; in a hub cache (models--ORG--NAME/snapshots/COMMIT) that of the model."""
    above, name = os.path.split(folder)
    repository, snapshots = os.path.split(above)
    cached = os.path.basename(repository)
    if snapshots == "snapshots" and cached.startswith("models--"):
        return cached.removeprefix("models--").replace("--", "/")
    return name


def read_json(path: str) -> object:
    """Parse one JSON file of bounded size. Raises BadConfigError when it is unreadable, too large or damaged."""
    return _parsed(_read(path), path)


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise BadConfigError(f"{_shown(path)}: cannot be read: {error.strerror}", fix="check the path") from error
    if len(data) > MAX_JSON_BYTES:
        raise BadConfigError(f"{_shown(path)}: larger than {MAX_JSON_BYTES} bytes", fix="give the model's own file")
    return data


def _parsed(data: bytes, path: str) -> object:
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadConfigError(f"{_shown(path)}: no valid JSON: {str(error)[:80]}", fix="download it again") from error
    return document


def clean(document: object) -> None:
    """Make every string of a parsed JSON document printable, in place: an error or a report may show any of them.

    It goes by a list of its own, because a document may be nested deeper than calls can be.
    """
    left = [document]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            for name in [name for name in part if not _is_clean(name)]:
                part[_cleaned(name)] = part.pop(name)
        elif not isinstance(part, list):
            continue
        for at, value in part.items() if isinstance(part, dict) else enumerate(part):
            if isinstance(value, str):
                if not _is_clean(value):
                    part[at] = _cleaned(value)
            elif isinstance(value, dict | list):
                left.append(value)


def _cleaned(text: str) -> str:
    return printable(text, MAX_TEXT_CHARS).replace("\n", "?")


def _is_clean(text: str) -> bool:
    return len(text) <= MAX_TEXT_CHARS and text.isprintable()


def _shown(text: str) -> str:
    """A path that can be printed anywhere: bytes that are no UTF-8 and control characters replaced, length bounded."""
    return printable(text[-200:]).replace("\n", "?")
