"""One line for every request, whatever becomes of it; a log that cannot be written stops nobody."""

import asyncio
import json
import os
import select
from pathlib import Path
from typing import Any

import pytest

from kvbudget.edge.access_log import AccessLog
from kvbudget.edge.request.identity import Identity
from kvbudget.edge.request.record import Asked, Record
from kvbudget.edge.traces.read import load_trace
from kvbudget.errors import BadValueError
from kvbudget.gate.refusing.refusals import Outcome

Stand = Any  # the class lives in conftest.py, which cannot be imported


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def record(number: int = 0) -> Record:
    return Record(Identity(b"r%d" % number), Asked("chat", "m", False, 1, 16), "127.0.0.1:1", number)


def test_who_is_served_refused_not_understood_or_gone_has_one_line_each(play: Any, tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"

    async def scene(stand: Stand) -> None:
        served = {"x-request-id": "one", "x-kvbudget-tenant": "acme", "x-kvbudget-priority": "3"}
        assert (await stand.chat(headers=served, stream=True, model="m")).status_code == 200
        assert (await stand.chat(headers={"x-request-id": "two"}, max_tokens=100_000, n=40)).status_code == 400
        assert (await stand.chat(headers={"x-request-id": "three"}, messages="no")).status_code == 400
        stand.engine.hold = True
        _, writer = await stand.open_chat(messages=[{"role": "user", "content": "tell nobody"}])
        await stand.until(lambda: len(stand.engine.requests) == 2)
        writer.close()
        await stand.until(lambda: not list(stand.service.gateway.flows))
        await stand.service._access_log.flush()
        one, two, three, four = lines(path)
        assert one["request_id"] == "one"
        assert (one["tenant"], one["priority"], one["outcome"], one["status"]) == ("acme", 3, "finished", 200)
        assert (one["surface"], one["model"], one["stream"], one["max_tokens"]) == ("chat", "m", True, 16)
        assert (one["prompt_tokens"], one["output_tokens"], one["reserved_blocks"]) == (100, 16, 8)
        assert 0 <= one["first_token_ms"] <= one["duration_ms"]
        assert (two["outcome"], two["status"], two["prompt_tokens"]) == ("refused", 400, 100)
        assert (three["refusal"], three["status"], three["prompt_tokens"]) == ("bad_request", 400, None)
        assert (four["outcome"], four["status"]) == ("client_gone", None)
        assert "tell nobody" not in path.read_text()

    play(scene, {"count": 100}, serve={"access_log": str(path)})


HOSTILE = 'm\r\n{"outcome":"finished"}\x1b[2J\x7f\x85\x9b31m\u2028\u202e\U000e0001é'


def test_what_a_client_names_forges_no_line_and_steers_no_terminal(play: Any, tmp_path: Path) -> None:
    path = tmp_path / "access.jsonl"

    async def scene(stand: Stand) -> None:
        for model in (HOSTILE, "mé"):
            assert (await stand.chat(model=model)).status_code == 200
        await stand.service._access_log.flush()
        text = path.read_text()
        assert text.replace("\n", "").isprintable()
        assert text.count("\n") == len(text.splitlines()) == 2
        assert [line["model"] for line in lines(path)] == [HOSTILE, "mé"]
        assert "mé" in text

    play(scene, {"count": 100}, serve={"access_log": str(path)})


def test_a_log_that_was_renamed_is_opened_anew(tmp_path: Path) -> None:
    path, older = tmp_path / "access.jsonl", tmp_path / "access.jsonl.1"

    async def rotate() -> None:
        log = AccessLog(str(path), every_s=3600)
        log.open()
        log.ended(record(1), Outcome.FINISHED, 200, 5, 3, None)
        await log.flush()
        path.rename(older)
        log.ended(record(2), Outcome.FINISHED, 200, 5, 3, None)
        await log.close()
        await log.close()

    asyncio.run(rotate())
    assert [line["request_id"] for line in lines(older)] == ["r1"]
    assert [line["request_id"] for line in lines(path)] == ["r2"]
    assert path.stat().st_mode & 0o007 == 0


def test_a_disk_that_takes_nothing_costs_lines_that_are_counted(tmp_path: Path) -> None:
    async def full() -> AccessLog:
        log = AccessLog("/dev/full", every_s=3600)
        log.open()
        for number in range(3):
            log.ended(record(number), Outcome.FINISHED, 200, 5, 3, None)
        await log.flush()
        await log.close()
        return log

    assert asyncio.run(full()).lost == 3


def test_lines_that_the_disk_does_not_take_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvbudget.edge.access_log.MOST_WAITING_BYTES", 1000)

    async def much() -> AccessLog:
        log = AccessLog(str(tmp_path / "log"), every_s=3600)
        log.open()
        for number in range(100):
            log.ended(record(number), Outcome.FINISHED, 200, 5, 3, None)
        await log.close()
        return log

    lost = asyncio.run(much()).lost
    assert 0 < lost < 100
    assert len(lines(tmp_path / "log")) == 100 - lost


def test_a_log_that_cannot_be_opened_is_said_at_the_start(tmp_path: Path) -> None:
    async def start() -> None:
        AccessLog(str(tmp_path / "none" / "log")).open()

    with pytest.raises(BadValueError, match="--access-log"):
        asyncio.run(start())


def test_a_log_is_a_trace_whose_refused_requests_are_load_as_well(tmp_path: Path) -> None:
    def line(second: float, **more: object) -> str:
        entry = {"time": f"2026-11-30T00:00:{second:06.3f}Z", "prompt_exact": True, "tenant": "a", **more}
        return json.dumps(entry)

    path = tmp_path / "log"
    path.write_text(
        "\n".join(
            [
                line(2, outcome="finished", prompt_tokens=10, output_tokens=7, max_tokens=100),
                line(1, outcome="refused", prompt_tokens=20, max_tokens=50),
                line(3.5, outcome="refused", prompt_tokens=30, max_tokens=5, priority=4),
                line(4, outcome="refused", prompt_tokens=None),
                line(5, outcome="client_gone", prompt_tokens=40, output_tokens=None, max_tokens=None, tenant="b"),
            ]
        )
        + "\n"
    )
    found = load_trace(path)
    assert [request.arrival_ns for request in found] == [0, 10**9, 2_500_000_000, 4 * 10**9]
    assert [request.prompt_tokens for request in found] == [20, 10, 30, 40]
    assert [request.output_tokens for request in found] == [50, 7, 5, 7]
    assert [request.tenant for request in found] == ["a", "a", "a", "b"]
    assert [request.priority for request in found] == [0, 0, 4, 0]


@pytest.mark.parametrize(
    "damage",
    [
        {"time": "yesterday"},
        {"prompt_tokens": -1},
        {"priority": "high"},
        {"tenant": 5},
        {"time": "2026-11-30T00:00:00"},
    ],
)
def test_a_damaged_line_of_a_log_is_named(tmp_path: Path, damage: dict[str, object]) -> None:
    path = tmp_path / "log"
    right = {"time": "2026-11-30T00:00:00Z", "prompt_exact": True, "prompt_tokens": 3, "outcome": "refused"}
    path.write_text(json.dumps(right | damage) + "\n")
    with pytest.raises(BadValueError, match=f"{os.path.basename(path)}:1"):
        load_trace(path)


def test_to_a_pipe_that_several_processes_write_to_lines_go_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    log = AccessLog(str(pipe))
    written = [b"%d %s\n" % (number, b"x" * (number * 37 % 900)) for number in range(60)]
    written.insert(30, b"y" * 6000 + b"\n")
    sizes: list[int] = []
    real = os.write

    def write(file: int, data: memoryview) -> int:
        sizes.append(len(data))
        return real(file, data)

    try:
        log._reopen()
        monkeypatch.setattr(os, "write", write)
        log._write(written)
        monkeypatch.undo()
        assert os.read(reader, 1 << 20) == b"".join(written)
        assert sorted(size for size in sizes if size > select.PIPE_BUF) == [6001]  # cannot be less
        assert len(sizes) < 12
    finally:
        os.close(reader)
        assert log._file is not None
        os.close(log._file)
