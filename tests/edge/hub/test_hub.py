"""Hub ids: the local cache first, then a hub, which here is a small server on this machine."""

import json
import socket
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from kvbudget.edge.hub.folder import read_checkpoint
from kvbudget.edge.hub.hub import HubId, parse_hub_id
from kvbudget.errors import BadConfigError, BadValueError, InputError

CONFIG = b'{"model_type": "llama", "num_hidden_layers": 2}'
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Files by path, a status for all answers when it is not 200, and what was asked."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.status = 200
        self.redirect = ""
        self.ranges = True
        self.asked: list[tuple[str, str]] = []
        self.endpoint = ""

    def put(self, name: str, data: bytes, revision: str = "main") -> None:
        self.files[f"/acme/tiny/resolve/{revision}/{name}"] = data


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    fake = FakeHub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            fake.asked.append((self.path, self.headers.get("Authorization", "")))
            data = fake.files.get(self.path)
            if fake.redirect:
                self.send_response(302)
                self.send_header("Location", fake.redirect + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            status = 404 if data is None and fake.status == 200 else fake.status
            body = data or b""
            span = self.headers.get("Range")
            if status == 200 and span and fake.ranges:
                first, last = (int(part) for part in span.removeprefix("bytes=").split("-"))
                body, status = body[first : last + 1], 206
            self.send_response(status)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    fake.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def environment(hub: FakeHub, tmp_path: Path) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.endpoint + "/", "HF_HOME": str(tmp_path / "hf")}


def header_of(tensors: dict[str, int]) -> bytes:
    """The head of a safetensors file, followed by nothing: the tensors are not there to be read."""
    entries, offset = {}, 0
    for name, size in tensors.items():
        entries[name] = {"dtype": "BF16", "shape": [size // 2], "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(entries).encode()
    return len(raw).to_bytes(8, "little") + raw


def test_config_quantisation_and_index_are_fetched(hub: FakeHub, environment: dict[str, str]) -> None:
    hub.put("config.json", CONFIG)
    hub.put("hf_quant_config.json", b'{"quantization": {"quant_algo": "NVFP4"}}')
    hub.put("model.safetensors.index.json", b'{"metadata": {"total_size": 1000}, "weight_map": {"a": "x.safetensors"}}')
    found = read_checkpoint("acme/tiny", environment)
    assert found.name == "acme/tiny"
    assert found.config == {
        "model_type": "llama",
        "num_hidden_layers": 2,
        "quantization_config": {"quantization": {"quant_algo": "NVFP4"}},
    }
    assert found.tensors is not None
    assert found.tensors.total_bytes == 1000
    assert (found.source, found.revision) == ("hub", COMMIT)
    assert found.fingerprint == sha256(CONFIG + b"@" + COMMIT.encode()).hexdigest()


@pytest.mark.parametrize("ranges", [True, False])
def test_a_single_file_tells_its_weights_by_its_header_alone(
    hub: FakeHub, environment: dict[str, str], ranges: bool
) -> None:
    hub.ranges = ranges
    hub.put("config.json", CONFIG)
    hub.put("model.safetensors", header_of({"a": 200, "b": 40}) + bytes(240))
    found = read_checkpoint("acme/tiny", environment).tensors
    assert found is not None
    assert (found.by_dtype, found.files) == ({"BF16": 240}, 1)


def test_without_weights_there_is_still_a_config(hub: FakeHub, environment: dict[str, str]) -> None:
    hub.put("config.json", CONFIG)
    assert read_checkpoint("acme/tiny", environment).tensors is None


def test_a_revision_is_asked_for_as_it_is_written(hub: FakeHub, environment: dict[str, str]) -> None:
    hub.put("config.json", CONFIG, revision="v1.2")
    read_checkpoint("acme/tiny@v1.2", environment)
    with pytest.raises(BadValueError, match=r"acme/tiny@main has no config\.json"):
        read_checkpoint("acme/tiny", environment)


def test_a_token_is_sent_to_the_hub_and_not_to_where_it_redirects(hub: FakeHub, environment: dict[str, str]) -> None:
    hub.put("config.json", CONFIG)
    environment["HF_TOKEN"] = "hf_secret"
    read_checkpoint("acme/tiny", environment)
    assert {token for _, token in hub.asked} == {"Bearer hf_secret"}
    hub.asked.clear()
    environment["HF_ENDPOINT"] = hub.endpoint.replace("127.0.0.1", "localhost")
    hub.redirect = hub.endpoint
    with pytest.raises(InputError):
        read_checkpoint("acme/tiny", environment)
    assert hub.asked[0][1] == "Bearer hf_secret"
    assert {token for _, token in hub.asked[1:]} == {""}


@pytest.mark.parametrize(("status", "words"), [(401, "HF_TOKEN"), (403, "HF_TOKEN"), (500, "try later")])
def test_a_refusal_says_what_to_do(hub: FakeHub, environment: dict[str, str], status: int, words: str) -> None:
    hub.status = status
    with pytest.raises(BadValueError, match=str(status)) as caught:
        read_checkpoint("acme/tiny", environment)
    assert words in caught.value.fix


def test_a_hub_that_is_not_there_is_a_clear_error(hub: FakeHub, environment: dict[str, str]) -> None:
    environment["HF_ENDPOINT"] = "http://127.0.0.1:1"
    with pytest.raises(BadValueError, match="cannot be reached"):
        read_checkpoint("acme/tiny", environment)


@pytest.mark.parametrize(
    "endpoint", ["file:///etc", "ftp://x", "nonsense", "http://[::1", "http://x:port", "http://u:p@x"]
)
def test_an_endpoint_is_http(endpoint: str) -> None:
    with pytest.raises(BadValueError, match="HF_ENDPOINT"):
        read_checkpoint("acme/tiny", {"HF_ENDPOINT": endpoint, "HF_HOME": "/nowhere"})


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("config.json", b"{", "no valid JSON"),
        ("hf_quant_config.json", b"nonsense", "no valid JSON"),
        ("model.safetensors.index.json", b"{}", "weight_map"),
        ("model.safetensors", b"\xff" * 8, "header length"),
        ("model.safetensors", (500).to_bytes(8, "little") + b"{}", "inside its header"),
    ],
)
def test_damaged_answers_are_named(hub: FakeHub, environment: dict[str, str], name: str, data: bytes, why: str) -> None:
    hub.put("config.json", CONFIG)
    hub.put(name, data)
    with pytest.raises(BadConfigError, match=why):
        read_checkpoint("acme/tiny", environment)


@pytest.mark.parametrize("token", ["secret\r\nX: y", "secr\u00e9t"])
def test_a_token_that_is_none_is_refused_and_not_shown(environment: dict[str, str], token: str) -> None:
    environment["HF_TOKEN"] = token
    with pytest.raises(BadValueError, match="HF_TOKEN holds") as caught:
        read_checkpoint("acme/tiny", environment)
    assert "secr" not in str(caught.value)


def test_what_a_hub_says_instead_of_http_is_shown_without_signs_that_steer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.recv(4096)
                client.sendall(b"HTTP/1.1 \x1b[31mEVIL 200 O\r\n\r\n")

        thread = Thread(target=answer)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(BadValueError, match="EVIL") as caught:
            read_checkpoint("acme/tiny", {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)})
        thread.join()
    assert str(caught.value).isprintable()


def cached(home: Path, *, ref: str | None = "main") -> None:
    repository = home / "hub" / "models--acme--tiny"
    folder = repository / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(CONFIG)
    if ref is not None:
        (repository / "refs").mkdir()
        (repository / "refs" / ref).write_text(COMMIT)


def test_the_local_cache_comes_first_and_needs_no_network(
    hub: FakeHub, environment: dict[str, str], tmp_path: Path
) -> None:
    cached(tmp_path / "hf")
    environment["HF_HUB_OFFLINE"] = "1"
    found = read_checkpoint("acme/tiny", environment)
    assert (found.name, found.source, found.revision) == ("acme/tiny", "cache", COMMIT)
    assert found.fingerprint == sha256(CONFIG + b"@" + COMMIT.encode()).hexdigest()
    assert read_checkpoint(f"acme/tiny@{COMMIT}", environment) == found
    assert hub.asked == []


def test_offline_without_a_cached_copy_asks_nobody(hub: FakeHub, environment: dict[str, str], tmp_path: Path) -> None:
    cached(tmp_path / "hf", ref=None)
    environment["HF_HUB_OFFLINE"] = "true"
    with pytest.raises(BadValueError, match="HF_HUB_OFFLINE"):
        read_checkpoint("acme/tiny", environment)
    assert hub.asked == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("acme/tiny", HubId("acme", "tiny", "main")),
        ("acme/tiny-1.5_B@refs/pr/3", HubId("acme", "tiny-1.5_B", "refs/pr/3")),
        ("acme", None),
        ("acme/", None),
        ("/tiny", None),
        ("acme/../x", None),
        ("acme/..", None),
        ("acme/.tiny", None),
        ("acme/tiny@", None),
        ("acme/tiny@../../x", None),
        ("acme/ti ny", None),
        ("acme/t\u00efny", None),
        ("acme/" + "x" * 200, None),
    ],
)
def test_a_hub_id_is_two_plain_words(text: str, expected: HubId | None) -> None:
    assert parse_hub_id(text) == expected
