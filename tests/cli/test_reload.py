"""`kvbudget reload` tells what a running gate took over, and that nothing changed where the file is bad."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvbudget.cli.main import main

FILE = """schema = "kvbudget.budget/1"
[gate]
{gate}
"""
SERVE = [sys.executable, "-m", "kvbudget", "serve", "--port", "0", "--admin-port", "0", "--embedded-engine", "--json"]


def test_it_is_taken_over_whole_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kvbudget.toml"
    path.write_text(FILE.format(gate="margin_blocks = 1"))
    process = subprocess.Popen([*SERVE, "--config", str(path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        admin = json.loads(process.stdout.readline())["admin"]

        def reload(gate: str) -> tuple[int, str]:
            path.write_text(FILE.format(gate=gate))
            return main(["reload", "--admin", admin]), capsys.readouterr().out

        assert reload("margin_blocks = 7\nshadow = true") == (0, "changed: margin_blocks, shadow\n")
        assert reload("margin_blocks = 7\nshadow = true") == (0, "changed: nothing\n")
        status, told = reload("margin_blocks = -1")
        assert status == 1
        assert "kvbudget.toml:3: gate.margin_blocks is -1" in told
        status, told = reload('margin_blocks = 7\ntokenizer = "bound"')
        assert (status, "needs a restart, the old ones stay: tokenizer" in told) == (1, True)
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert main(["reload", "--admin", admin]) == 2
    assert "no gate answers" in capsys.readouterr().err


@pytest.mark.parametrize("address", ["127.0.0.1:8801", "file:///etc/passwd"])
def test_what_is_no_address_is_refused(address: str) -> None:
    assert main(["reload", "--admin", address]) == 2
