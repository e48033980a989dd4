"""The live screen goes on when a scrape fails, fits its terminal, and keeps what the verdicts were."""

import json
import signal
import sys
from collections.abc import Iterator

import pytest

from kvbudget.cli.diagnosing.watching import Watch, ctrl_c, looking
from kvbudget.diagnose.verdict import diagnose
from kvbudget.engines.window import Observation
from kvbudget.errors import BadValueError
from windows import window

WELL = Observation((window(usage=0.4, running=4, waiting=0),))
FULL = Observation((window(usage=0.99, running=40, waiting=9, preemptions=5.0),))
AWAY = BadValueError("http://a cannot be reached", fix="check that it is up")


def watch_of(*seen: Observation | Exception, waits: list[float] | None = None) -> Watch:
    left = iter(seen)

    def look() -> Observation:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found

    times = _ticks()
    return Watch(
        look,
        diagnose,
        5.0,
        sleep=([] if waits is None else waits).append,
        now_s=lambda: next(times),
        clock=lambda: "12:00:00",
    )


def _ticks() -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += 2.0


def test_one_line_of_json_a_look_and_what_fails_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert watch_of(FULL, AWAY, WELL).as_json(turns=3) == 0
    told = capsys.readouterr()
    assert [json.loads(line)["verdict"] for line in told.out.splitlines()] == ["pool_full", "healthy"]
    assert "cannot be reached" in told.err


def test_the_exit_code_is_that_of_the_last_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert watch_of(WELL, FULL).as_json(turns=2) == 1
    assert watch_of(AWAY).as_json(turns=1) == 1
    capsys.readouterr()


def test_ctrl_c_in_a_destructor_ends_it_at_the_next_look(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python ignores what is raised there (seen once: the screen went on, and Ctrl-C had done nothing)."""

    class Pressed:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    def look() -> Observation:
        Pressed()
        return FULL

    before = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    with ctrl_c() as pressed:
        watch = Watch(look, diagnose, 5.0, sleep=lambda _: None, interrupted=pressed)
        with pytest.raises(KeyboardInterrupt):
            watch.as_json(turns=2)
    assert capsys.readouterr().out.count("pool_full") > 0
    assert signal.getsignal(signal.SIGINT) is before


def test_what_was_seen_last_stays_on_the_screen_while_a_scrape_fails() -> None:
    watch = watch_of(FULL, AWAY)
    watch.turn()
    watch.turn()
    text = "\n".join(watch.lines(80))
    assert "not seen just now: http://a cannot be reached" in text
    assert "pool_full: the KV pool is full" in text
    watch = watch_of(AWAY)
    watch.turn()
    assert "trying again" in "\n".join(watch.lines(80))


@pytest.mark.parametrize("width", [80, 100, 60])
@pytest.mark.parametrize("height", [24, 12, 50])
def test_the_screen_fits_its_terminal(width: int, height: int) -> None:
    watch = watch_of(FULL, WELL, AWAY)
    for _ in range(3):
        assert len(watch.lines(width, height)) <= height
        watch.turn()
        lines = watch.lines(width, height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width


def test_a_low_screen_shows_the_first_action_and_some_of_the_evidence() -> None:
    watch = watch_of(FULL)
    watch.turn()
    text = "\n".join(watch.lines(80, 24))
    assert text.index("pool_full:") < text.index("what to do, cheapest first") < text.index("evidence")
    assert "-> " in text
    assert "usage  " in text
    assert " more)" in text
    assert text.endswith("pool_full")
    assert "it would be refuted by" in "\n".join(watch.lines(80, 80))


def test_the_first_window_is_told_while_it_runs() -> None:
    watch = watch_of(FULL)
    assert "asking" in "\n".join(watch.lines(80, 24))
    watch.waiting(2.0)
    assert "looking" in "\n".join(watch.lines(80, 24))
    watch.turn()
    assert "looking" not in "\n".join(watch.lines(80, 24))


def test_a_window_is_told_without_passwords() -> None:
    told = looking(10.0, ["http://me:secret@a:1/metrics", "http://b:1/metrics"])
    assert told == "looking for 10 s at the URL, http://b:1/metrics"


def test_what_stays_is_each_change_with_its_time_the_oldest_first() -> None:
    watch = watch_of(WELL, FULL)
    assert watch.told() == ["no verdict yet"]
    watch.turn()
    watch.turn()
    assert watch.told() == ["  12:00:00  healthy", "  12:00:00  pool_full"]


def test_verdicts_so_far_are_kept_once_for_each_change() -> None:
    watch = watch_of(WELL, WELL, FULL, FULL, WELL)
    for _ in range(5):
        watch.turn()
    assert [verdict for _, verdict in watch.history] == ["healthy", "pool_full", "healthy"]


def test_a_look_that_took_its_window_is_not_waited_for_twice() -> None:
    waits: list[float] = []
    watch_of(WELL, WELL, waits=waits).as_json(turns=2)
    assert waits == [3.0, 3.0]


def test_it_is_drawn_where_no_terminal_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert watch_of(WELL, FULL).on_screen(turns=2) == 1
    assert "pool_full" in capsys.readouterr().out


def test_into_a_pipe_each_look_is_a_line_and_a_new_verdict_is_told_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    assert watch_of(WELL, WELL, AWAY, FULL, FULL).as_text(turns=5) == 1
    told = capsys.readouterr()
    looks = [line for line in told.out.splitlines() if line.startswith("12:00:00")]
    assert [line.split()[1] for line in looks] == ["healthy", "healthy", "pool_full", "pool_full"]
    assert told.out.count("what to do, cheapest first") == 2, "once for each verdict"
    assert "cannot be reached" in told.err


def test_a_look_is_written_before_the_next_one_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is no terminal here: `kvbudget diagnose --watch | tee` showed nothing until it was stopped."""
    seen: list[str] = []
    watch = watch_of(FULL, FULL)
    watch._sleep = lambda _: seen.append(capsys.readouterr().out)
    assert watch.on_screen(turns=2) == 1
    assert [text.startswith("12:00:00  pool_full\n") for text in seen] == [True, True]
