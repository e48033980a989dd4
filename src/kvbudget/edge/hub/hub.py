"""Decides where the files of a hub id (`owner/model`, `owner/model@revision`) come from: the local cache, or the hub.

Only config.json, the quantisation beside it, and the index or header of the weights are read; weights never are.
Environment as in huggingface_hub: HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE, HF_HUB_CACHE, HF_HOME.
"""

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import IO, NamedTuple

from kvbudget.edge.fetching import Deadline, address_of, opener_until
from kvbudget.edge.hub.safetensors import INDEX, MAX_HEADER_BYTES, SINGLE, Tensors, tensors_of_header, total_of_index
from kvbudget.errors import BadConfigError, BadValueError, InputError, printable

DEFAULT_ENDPOINT = "https://huggingface.co"
MAX_CONFIG_BYTES = 4 * 1024**2  # as of a local one, folder.py
MAX_INDEX_BYTES = 64 * 1024**2
DEADLINE_S = 60.0
_CHUNK_BYTES = 65_536
_TRUE = ("1", "true", "yes", "on")
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_LONGEST = 96


class HubId(NamedTuple):
    """A model on the hub; `revision` is a branch, a tag or a commit."""

    owner: str
    model: str
    revision: str

    @property
    def name(self) -> str:
        """As people write it."""
        return f"{self.owner}/{self.model}"


class Fetched(NamedTuple):
    """What was fetched: raw config.json and quantisation file, weights, and the commit when the hub told it."""

    config: bytes
    quantization: bytes | None
    tensors: Tensors | None
    revision: str


def parse_hub_id(text: str) -> HubId | None:
    """The id that `text` spells, None when it is none."""
    name, _, revision = text.partition("@")
    owner, slash, model = name.partition("/")
    parts = (owner, model)
    if not slash or not all(0 < len(part) <= _LONGEST and set(part) <= _LETTERS for part in parts):
        return None
    if any(part.startswith((".", "-")) or ".." in part for part in parts):
        return None
    if "@" in text and (not revision or ".." in revision or not set(revision) <= _LETTERS | {"/"}):
        return None
    return HubId(owner, model, revision or "main")


def cached_folder(model: HubId, environment: Mapping[str, str]) -> str | None:
    """The snapshot of the local cache that holds this revision's config.json, None when there is none."""
    root = environment.get("HF_HUB_CACHE")
    if not root:
        home = environment.get("HF_HOME") or os.path.join(
            environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
        )
        root = os.path.join(home, "hub")
    repository = os.path.join(os.path.expanduser(root), f"models--{model.owner}--{model.model}")
    commit = model.revision
    try:
        with open(os.path.join(repository, "refs", *model.revision.split("/")), encoding="ascii") as file:
            commit = file.read(200).strip()
    except (OSError, UnicodeError):
        pass  # no ref of that name: it may be a commit itself
    if not commit or not set(commit) <= _LETTERS or commit.startswith("."):
        return None
    folder = os.path.join(repository, "snapshots", commit)
    return folder if os.path.isfile(os.path.join(folder, "config.json")) else None


def is_offline(environment: Mapping[str, str]) -> bool:
    """Whether HF_HUB_OFFLINE (or its older spelling for transformers) forbids the network."""
    return any(environment.get(name, "").lower() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def fetch(model: HubId, environment: Mapping[str, str], layers_of: Callable[[bytes], int | None]) -> Fetched:
    """Fetch what a plan needs; `layers_of` reads from config.json how many layers the model has.

    Raises BadValueError with what to do when the hub cannot be asked or refuses.
    """
    if is_offline(environment):
        raise BadValueError(
            f"MODEL: {model.name} is not in the local cache, and HF_HUB_OFFLINE forbids to fetch it",
            fix="download it where there is a network, or give a folder with its config.json",
        )
    endpoint = (environment.get("HF_ENDPOINT") or DEFAULT_ENDPOINT).rstrip("/")
    address_of(endpoint, "HF_ENDPOINT", fix="for example https://huggingface.co")
    token = environment.get("HF_TOKEN", "").strip()
    if not token.isascii() or not token.isprintable():
        raise BadValueError("HF_TOKEN holds characters that no token has", fix="set it to the token alone")
    session = _Session(endpoint, model, token)
    config = session.file("config.json", MAX_CONFIG_BYTES)
    if config is None:
        raise BadValueError(
            f"MODEL: {model.name}@{model.revision} has no config.json at {_host(endpoint)}",
            fix="check the id; a GGUF repository needs its .gguf file, downloaded",
        )
    quantization = session.file("hf_quant_config.json", MAX_CONFIG_BYTES)
    index = session.file(INDEX, MAX_INDEX_BYTES)
    layers = layers_of(config)
    tensors = total_of_index(index, layers) if index is not None else session.header(SINGLE, layers)
    return Fetched(config, quantization, tensors, session.commit or model.revision)


class _SameHostToken(urllib.request.HTTPRedirectHandler):
    """A token is for the hub alone: it does not follow a redirect to another host."""

    max_redirections = 5

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: object,
        newurl: str,
    ) -> urllib.request.Request | None:
        fp.close()  # urllib would read its body whole, however long it is
        if urllib.parse.urlsplit(newurl).scheme not in ("http", "https"):
            raise urllib.error.URLError("it redirects to an address that is neither http nor https")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]
        if request is not None and urllib.parse.urlsplit(newurl).netloc != urllib.parse.urlsplit(req.full_url).netloc:
            request.remove_header("Authorization")
        return request


class _Session:
    """Requests for files of one revision, all together bounded in time."""

    def __init__(self, endpoint: str, model: HubId, token: str) -> None:
        revision = urllib.parse.quote(model.revision, safe="")
        self._base = f"{endpoint}/{model.owner}/{model.model}/resolve/{revision}/"
        self._host = _host(endpoint)
        self._model = model
        self._token = token
        self._deadline = Deadline(DEADLINE_S)
        self._opener = opener_until(self._deadline, _SameHostToken())
        self.commit = ""

    def file(self, name: str, limit: int) -> bytes | None:
        """A whole file, None when the repository does not have it."""
        return self._get(name, limit, None)

    def header(self, name: str, layers: int | None) -> Tensors | None:
        """Weights of one safetensors file by its header alone, None when the repository does not have it."""
        prefix = self._get(name, 8, (0, 7))
        if prefix is None:
            return None
        length = int.from_bytes(prefix, "little")
        if len(prefix) < 8 or not 2 <= length <= MAX_HEADER_BYTES:
            raise BadConfigError(f"{name}: its header length is impossible", fix="give --weights")
        data = self._get(name, length, (8, 7 + length))
        if data is None or len(data) < length:
            raise BadConfigError(f"{name}: it ends inside its header", fix="give --weights")
        return tensors_of_header(data, name, layers)

    def _get(self, name: str, limit: int, span: tuple[int, int] | None) -> bytes | None:
        request = urllib.request.Request(self._base + name, headers={"User-Agent": "kvbudget", "Accept": "*/*"})  # noqa: S310 - the scheme was checked
        if self._token:
            request.add_header("Authorization", f"Bearer {self._token}")
        if span is not None:
            request.add_header("Range", f"bytes={span[0]}-{span[1]}")
        try:
            with self._opener.open(request, timeout=self._deadline.left_s()) as response:
                self.commit = self.commit or _commit(response.headers.get("X-Repo-Commit"))
                skip = span[0] if span is not None and response.status != 206 else 0  # the whole file came
                return self._read(response, name, limit, skip, whole=span is None)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 404:
                return None
            raise self._refused(error.code) from error
        except (urllib.error.URLError, OSError, HTTPException, ValueError) as error:
            reason = printable(" ".join(str(getattr(error, "reason", error)).split()), 100)
            raise BadValueError(
                f"MODEL: {self._model.name} is no local path, and {self._host} cannot be reached: {reason}",
                fix="give a local folder with its config.json; set HF_ENDPOINT for a mirror",
            ) from error

    def _read(self, response: IO[bytes], name: str, limit: int, skip: int, *, whole: bool) -> bytes:
        if skip > _CHUNK_BYTES:
            raise BadConfigError(f"{name}: the hub does not answer range requests", fix="give --weights")
        data = bytearray()
        while len(data) <= limit + skip:
            chunk = response.read(min(_CHUNK_BYTES, limit + skip + 1 - len(data)))
            if not chunk:
                break
            data += chunk
            if not whole and len(data) >= limit + skip:
                break
        if whole and len(data) > limit:
            raise BadConfigError(f"{name}: larger than {limit} bytes", fix="give a local folder")
        return bytes(data[skip : skip + limit])

    def _refused(self, code: int) -> InputError:
        if code in (401, 403):
            hint = "its token was refused" if self._token else "it is private, gated, or does not exist"
            return BadValueError(
                f"MODEL: {self._host} answers {code} for {self._model.name}: {hint}",
                fix="accept its licence and set HF_TOKEN, or give a local folder",
            )
        return BadValueError(
            f"MODEL: {self._host} answers {code} for {self._model.name}", fix="try later, or give a local folder"
        )


def quantization_beside(data: bytes | None) -> object:
    """Parsed hf_quant_config.json, None when there is none or it is no JSON."""
    if data is None:
        return None
    try:
        parsed: object = json.loads(data)
    except (ValueError, RecursionError):
        raise BadConfigError("hf_quant_config.json: no valid JSON", fix="give --weights and a local folder") from None
    return parsed


def _commit(value: str | None) -> str:
    return value[:64] if value and set(value) <= _LETTERS else ""


def _host(endpoint: str) -> str:
    return (urllib.parse.urlsplit(endpoint).hostname or "?")[:100]
