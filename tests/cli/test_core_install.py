"""What works after a bare `pip install`: every library of the extra `gate` is refused, as if it was not there."""

import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from kvbudget.extras import install
from snapshots import vllm

ROOT = Path(__file__).resolve().parents[2]
OF_THE_GATE = sorted(
    line.partition(">")[0].replace("-", "_")
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gate"]
)
PROGRAM = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from kvbudget.cli.main import main
sys.exit(main({words}))
"""


def bare(*words: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(missing=OF_THE_GATE, words=list(words))
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def engine() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            if self.path == "/metrics":
                self.wfile.write(vllm({"usage": 0.2, "running": 2}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_libraries_are_really_missing() -> None:
    assert "orjson" in OF_THE_GATE
    done = bare("serve", "--backend", "http://127.0.0.1:1")
    assert done.returncode == 2
    assert install("gate") in done.stderr


def test_a_key_is_made() -> None:
    done = bare("key", "team-a")
    assert (done.returncode, done.stderr) == (0, "")
    assert "[gate.keys." in done.stdout


def test_saved_metrics_and_logs_are_diagnosed(tmp_path: Path) -> None:
    older = tmp_path / "older.prom"
    older.write_text(vllm({"usage": 0.99, "running": 40, "waiting": 25, "preemptions": 10}))
    newer = tmp_path / "newer.prom"
    newer.write_text(vllm({"usage": 0.99, "running": 40, "waiting": 25, "preemptions": 100}))
    done = bare("diagnose", str(older), str(newer))
    assert done.stdout.startswith("pool_full"), done.stderr
    done = bare("diagnose", str(ROOT / "docs/examples/vllm-start.log"), "--json")
    assert '"verdict"' in done.stdout, done.stderr


def test_a_running_engine_is_diagnosed(engine: str) -> None:
    done = bare("diagnose", engine, "--window", "0.1", "--json")
    assert '"verdict"' in done.stdout, done.stderr
