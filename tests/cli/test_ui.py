"""`kvbudget ui` in a process of its own."""

import json
import signal
import subprocess
import sys
import urllib.request

import pytest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_tells_its_address_answers_and_ends_cleanly_on_a_signal(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "kvbudget", "ui", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = json.loads(process.stdout.readline())
            assert line["schema"] == "kvbudget.ui/1"
            with urllib.request.urlopen(line["url"], timeout=10) as answer:
                assert "KV ledger" in answer.read().decode()
            process.send_signal(number)
            out, err = process.communicate(timeout=10)
            assert (process.returncode, out, err) == (0, "", "")
        finally:
            process.kill()
