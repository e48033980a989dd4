"""What was learned outlives the gate, and nothing that stands in the file can keep the gate from serving."""

import asyncio
import json
import logging
import os
from pathlib import Path

import pytest

from kvbudget.edge.learned_file import LearnedFile
from kvbudget.errors import BadValueError
from kvbudget.gate.learning.learned import LearnedPolicy
from kvbudget.pool.groups import uniform_layout


def policy(answers: int = 0) -> LearnedPolicy:
    made = LearnedPolicy(uniform_layout(16), 0.03, 4.0)
    for habit in made.lengths.chain("acme", "chat m", 512, 100) if answers else ():
        for _ in range(answers):
            habit.lived(0, 50)
            habit.ended(50)
    return made


def saved(path: Path, answers: int) -> None:
    asyncio.run(LearnedFile(str(path), policy(answers)).save())


def test_the_next_gate_goes_on_where_the_last_one_was(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    saved(path, 20)
    after = policy()
    LearnedFile(str(path), after).load()
    assert after.lengths.answers == pytest.approx(policy(20).lengths.answers)
    assert after.ready
    assert after.state() == policy(20).state()


def test_a_file_that_is_not_there_yet_is_no_reason_for_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = LearnedFile(str(tmp_path / "learned.json"), policy())
    file.load()
    assert not caplog.records
    asyncio.run(file.save())
    assert os.listdir(tmp_path) == []  # nothing was learned, so there is nothing to keep


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"schema": "kvbudget.budget/1"}',
        b'{"schema": "kvbudget.learned/1"}',
        b'{"schema": "kvbudget.learned/1", "lengths": {"version": 99}}',
        b'{"schema": "kvbudget.learned/1", "lengths": 7, "margin_added": 0}',
        b"\xff\xfe",
    ],
)
def test_a_bad_file_is_said_put_aside_and_the_policy_learns_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    path = tmp_path / "learned.json"
    path.write_bytes(content)
    learning = policy(5)
    file = LearnedFile(str(path), learning)
    with caplog.at_level(logging.WARNING):
        file.load()
    assert "the policy learns anew, and the first write keeps this file as " in caplog.text
    assert "Traceback" not in caplog.text
    assert path.read_bytes() == content  # not before there is something better
    with caplog.at_level(logging.INFO):
        asyncio.run(file.save())
    assert f"is kept as {path}.bad" in caplog.text
    assert (tmp_path / "learned.json.bad").read_bytes() == content
    assert json.loads(path.read_text())["schema"] == "kvbudget.learned/1"
    LearnedFile(str(path), policy()).load()
    asyncio.run(file.save())  # only the file that was found is put aside
    assert (tmp_path / "learned.json.bad").read_bytes() == content


def test_a_state_with_one_damaged_number_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "learned.json"
    saved(path, 20)
    state = json.loads(path.read_text())
    state["margin_added"] = -1
    path.write_text(json.dumps(state))
    fresh = policy()
    LearnedFile(str(path), fresh).load()
    assert "margin_added" in caplog.text
    assert fresh.state() == policy().state()


def test_a_place_that_no_file_can_have_is_refused_at_the_start(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "learned.json", tmp_path):
        with pytest.raises(BadValueError, match="--learned-state") as caught:
            LearnedFile(str(path), policy()).load()
        assert caught.value.fix


def test_it_is_written_while_the_gate_runs_and_when_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "learned.json"
    learning = policy(5)

    async def run() -> None:
        file = LearnedFile(str(path), learning, every_s=0.005)
        file.keep()
        async with asyncio.timeout(5):
            while not path.exists():
                await asyncio.sleep(0.005)
        learning.margin.added = 0.125
        await file.close()
        await file.close()

    asyncio.run(run())
    assert json.loads(path.read_text())["margin_added"] == 0.125
    assert os.listdir(tmp_path) == ["learned.json"]


def test_a_disk_that_takes_nothing_is_said_and_the_gate_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kvbudget.edge.whole_file.tempfile.mkstemp", full)
    asyncio.run(LearnedFile(str(tmp_path / "learned.json"), policy(5)).save())
    assert "what was learned is not kept" in caplog.text
    assert "No space left" in caplog.text


@pytest.mark.parametrize("what", ["pipe", "device", "folder"])
def test_what_is_no_file_is_never_taken_for_one_nor_put_aside(tmp_path: Path, what: str) -> None:
    path = tmp_path / "state"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(BadValueError, match="cannot be a file"):
        LearnedFile(str(path), policy(3)).load()
    assert os.listdir(tmp_path) == ["state"]
