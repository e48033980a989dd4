"""Decides which files a MODEL argument means, and reads its config.json. Offline: local paths only."""

import json
import os
from typing import NamedTuple

from kvbudget.edge.hub.safetensors import Tensors, tensors_in
from kvbudget.errors import BadConfigError, BadValueError, UnsupportedError

MAX_JSON_BYTES = 64 * 1024**2  # the largest index files have some megabytes
_CONFIG = "config.json"
_MODELOPT = "hf_quant_config.json"


class Checkpoint(NamedTuple):
    """What lies on disk. `config` is parsed JSON, still unchecked; `tensors` None when no weights are beside it."""

    name: str
    config: object
    tensors: Tensors | None


def read_checkpoint(model: str) -> Checkpoint:
    """Read MODEL: a folder with config.json, or a config.json.

    Raises UnsupportedError for hub ids and .gguf, BadValueError for paths that are not there, BadConfigError for
    damaged files.
    """
    if os.path.isdir(model):
        folder, path = model, os.path.join(model, _CONFIG)
        if not os.path.isfile(path):
            raise BadValueError(
                f"MODEL: {_shown(model)} has no {_CONFIG}", fix="give the folder of a Hugging Face checkpoint"
            )
    elif model.lower().endswith(".gguf"):
        raise UnsupportedError(
            f"MODEL: {_shown(model)}: GGUF files are planned but not read yet", fix="give a config.json"
        )
    elif os.path.isfile(model):
        folder, path = os.path.dirname(os.path.abspath(model)), model
    elif model.count("/") == 1 and not model.startswith((".", "/", "~")):
        raise UnsupportedError(
            f"MODEL: {_shown(model)} is no local path, and hub ids are planned but not fetched yet",
            fix="download its config.json and give the folder",
        )
    else:
        raise BadValueError(
            f"MODEL: {_shown(model)} does not exist", fix="give a folder with config.json, or a config.json"
        )
    config = read_json(path)
    if isinstance(config, dict) and not config.get("quantization_config"):
        # ModelOpt writes the quantisation beside config.json; vLLM 0.32 transformers_utils/config.py reads it too.
        beside = os.path.join(folder, _MODELOPT)
        if os.path.isfile(beside):
            config["quantization_config"] = read_json(beside)
    return Checkpoint(_shown(_name_of(os.path.abspath(folder))), config, tensors_in(folder))


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
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise BadConfigError(f"{_shown(path)}: cannot be read: {error.strerror}", fix="check the path") from error
    if len(data) > MAX_JSON_BYTES:
        raise BadConfigError(f"{_shown(path)}: larger than {MAX_JSON_BYTES} bytes", fix="give the model's own file")
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadConfigError(f"{_shown(path)}: no valid JSON: {str(error)[:80]}", fix="download it again") from error
    return document


def _shown(text: str) -> str:
    """A path that can be printed anywhere: bytes that are no UTF-8 and control characters replaced, length bounded."""
    text = text.encode("utf-8", "replace").decode()
    return "".join(c if c.isprintable() else "?" for c in text)[-200:]
