"""One change of a budget at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvbudget.edge.budget.lock import changing
from kvbudget.errors import BadValueError


def test_a_second_change_in_the_same_folder_waits_so_long_and_is_told(tmp_path: Path) -> None:
    (tmp_path / "link.toml").symlink_to("kvbudget.toml")
    with changing(str(tmp_path / "kvbudget.toml")):
        told = r"another kvbudget has been changing .* for 0\.05 s"
        with pytest.raises(BadValueError, match=told), changing(str(tmp_path / "link.toml"), wait_s=0.05):
            raise AssertionError
    with changing(str(tmp_path / "link.toml"), wait_s=0):
        pass
    assert os.listdir(tmp_path) == ["link.toml"]


def test_the_lock_ends_with_a_failure_and_with_a_killed_process(tmp_path: Path) -> None:
    path = str(tmp_path / "kvbudget.toml")
    with pytest.raises(ZeroDivisionError), changing(path):
        raise ZeroDivisionError
    code = (
        "import sys, time\nfrom kvbudget.edge.budget.lock import changing\n"
        "with changing(sys.argv[1]):\n print('held', flush=True)\n time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(BadValueError), changing(path, wait_s=0):
            raise AssertionError
        process.kill()
        process.wait(20)
        with changing(path, wait_s=5):
            pass


def test_a_folder_that_is_not_there_is_for_who_writes_to_say(tmp_path: Path) -> None:
    with changing(str(tmp_path / "no" / "kvbudget.toml")):
        pass
