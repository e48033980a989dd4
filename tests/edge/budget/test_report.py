"""Fetching what an engine reports."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kvbudget.edge.budget import report
from kvbudget.edge.budget.report import text_of
from kvbudget.errors import BadValueError


class _Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"tgi_batch_max_total_tokens 5\n"
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), _Metrics)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_address_of_an_engine_is_enough(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # an engine in one's own network is asked directly
    assert text_of(engine) == text_of(f"{engine}/metrics") == "tgi_batch_max_total_tokens 5\n"


def test_an_address_that_gives_no_metrics_is_an_error(engine: str) -> None:
    with pytest.raises(BadValueError, match="answered 404"):
        text_of(f"{engine}/other")
    with pytest.raises(BadValueError, match="cannot be reached"):
        text_of("http://127.0.0.1:1/metrics")
    with pytest.raises(BadValueError, match="not a plain"):
        text_of("http://user:secret@127.0.0.1/")


def test_a_file_is_read_whatever_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_bytes(b"GPU KV cache size: 5 tokens \xff\n")
    assert text_of(str(path)).startswith("GPU KV cache size: 5 tokens")
    with pytest.raises(BadValueError, match="cannot be read"):
        text_of(str(tmp_path / "none.log"))
    with pytest.raises(BadValueError, match="is a folder"):
        text_of(str(tmp_path))


def test_an_address_that_is_none_is_an_error_and_no_password_is_shown() -> None:
    for url in ("http://[::1", "http://user:secret@[", "http://x:port"):
        with pytest.raises(BadValueError) as caught:
            text_of(url)
        assert "secret" not in str(caught.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(bytes(range(128, 256)) * 8)
    with pytest.raises(BadValueError, match="is no text"):
        text_of(str(tmp_path / "log"))


def test_of_a_very_long_log_beginning_and_end_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MAX_REPORT_BYTES", 20)
    path = tmp_path / "vllm.log"
    path.write_bytes(b"begins....." + b"x" * 100 + b".......end")
    assert text_of(str(path)) == "begins....\n.......end"
