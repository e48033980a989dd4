"""The benchmark of the shared ledger runs, and counts what it says."""

import json
import subprocess
import sys
from pathlib import Path

from ledger_servers import program

RUN = Path(__file__).resolve().parents[2] / "bench" / "ledger" / "run.py"


def test_every_row_is_measured_at_full_load_and_paced() -> None:
    options = ["--server", program("redis"), "--processes", "2", "--seconds", "0.3", "--rounds", "1", "--rate", "200"]
    done = subprocess.run(
        [sys.executable, str(RUN), *options, "--json"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    rows = json.loads(done.stdout)
    assert len(rows) == 5
    for row in rows.values():
        assert row["full"]["pairs_per_s"] > row["paced"]["pairs_per_s"] > 0
        assert row["paced"]["p50_us"] <= row["paced"]["p99_us"]
    calls = {name: row["full"]["calls_per_pair"] for name, row in rows.items()}
    assert calls.pop("gate, slices, room for all") < 0.5
    assert calls.pop("plain redis-py: a script to reserve, one to release") == 2
    assert "the ledger failed" not in done.stderr
