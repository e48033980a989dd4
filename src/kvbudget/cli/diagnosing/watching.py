"""Decides what the live screen shows, and how it goes on when a scrape fails. Readable at 80 columns."""

import contextlib
import json
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from types import FrameType

from kvbudget.cli.output import written_out
from kvbudget.diagnose.finding import Diagnosis, document
from kvbudget.engines.window import Observation
from kvbudget.errors import InputError, printable

_RETRY_S = 1.0
_BEFORE, _LEAST = 6, 10  # lines of verdicts before this one, and lines that this one has before them
_HISTORY = 1000  # verdicts that are kept, the newest first
_SHOWN = 12  # and so many of them where the height is not known
_LONGEST_SHOWN = 200
Diagnosed = Callable[[Observation], Diagnosis]


class Watch:
    """Looks again and again. `look` gives what is seen by now; what it raises is shown, and it is tried again.

    `window` is what the screen says while the first window runs.
    """

    def __init__(
        self,
        look: Callable[[], Observation],
        diagnosed: Diagnosed,
        every_s: float,
        *,
        window: str = "looking",
        sleep: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
        clock: Callable[[], str] = lambda: time.strftime("%H:%M:%S"),
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:
        self._look = look
        self._diagnosed = diagnosed
        self._every_s = every_s
        self._sleep = sleep
        self._now_s = now_s
        self._clock = clock
        self._interrupted = interrupted
        self.last: Diagnosis | None = None
        self.problem = ""
        self._window = window
        self._began = False
        self._draw: Callable[[], None] = _nothing
        self.history: deque[tuple[str, str]] = deque(maxlen=_HISTORY)

    def turn(self) -> Diagnosis | None:
        """One look; None where it failed, and then `problem` says why."""
        try:
            found = self._diagnosed(self._look())
        except InputError as error:
            self.problem = printable(str(error))
            return None
        self.problem = ""
        if self.last is None or self.last.verdict != found.verdict:
            self.history.appendleft((self._clock(), found.verdict))
        self.last = found
        return found

    def as_json(self, turns: int | None = None) -> int:
        """One JSON document a line; what fails goes to stderr. Until interrupted, or for so many turns."""
        for _ in self._paced(turns):
            found = self.turn()
            if found is not None:
                with written_out():
                    print(json.dumps(document(found), allow_nan=False))
            else:
                self._say_problem()
        return self.code

    def as_text(self, turns: int | None = None) -> int:
        """For a pipe or a file: each look as a line, written at once; what a new verdict rests on below it."""
        from kvbudget.report.diagnosed import diagnosis_lines

        before = ""
        for _ in self._paced(turns):
            found = self.turn()
            if found is None:
                self._say_problem()
                continue
            told = [f"{self._clock()}  {found.verdict}"]
            if found.verdict != before:
                told += ["", *diagnosis_lines(found), ""]
            before = found.verdict
            with written_out():
                print("\n".join(map(printable, told)))
        return self.code

    def _say_problem(self) -> None:
        if sys.stderr is not None:
            print(f"kvbudget diagnose: {self.problem}", file=sys.stderr, flush=True)

    def on_screen(self, turns: int | None = None) -> int:
        """The same, drawn anew in place; where there is no screen, line by line."""
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console(highlight=False)
        if not console.is_terminal:
            return self.as_text(turns)
        try:
            with Live(console=console, auto_refresh=False, screen=True, transient=False) as live:

                def draw() -> None:
                    lines = self.lines(min(console.width, 100), console.size.height)
                    live.update(Text("\n".join(lines)), refresh=True)

                self._draw = draw
                self._draw()
                for _ in self._paced(turns):
                    self.turn()
                    draw()
        finally:  # the live screen goes with Ctrl-C; what it found is not to go with it
            self._draw = _nothing
            print("\n".join(self.told()), flush=True)
        return self.code

    def waiting(self, seconds: float) -> None:
        """What the look waits with: a window is under way, which the screen says while nothing else is known yet."""
        if not self._began:
            self._began = True
            self._draw()
        self._sleep(seconds)

    def told(self) -> list[str]:
        """What stays when the screen is gone: each change of the verdict with its time, the oldest first."""
        return [f"  {when}  {verdict}" for when, verdict in reversed(self.history)] or ["no verdict yet"]

    def _paced(self, turns: int | None) -> Iterator[None]:
        """A look at a live engine takes its window; what is left of the interval is waited."""
        for _ in count() if turns is None else range(turns):
            if self._interrupted():
                raise KeyboardInterrupt
            began = self._now_s()
            yield
            self._sleep(max(0.0 if self.last is not None else _RETRY_S, self._every_s - (self._now_s() - began)))

    @property
    def code(self) -> int:
        """0 while the last verdict is healthy."""
        return 0 if self.last is not None and self.last.verdict == "healthy" else 1

    def lines(self, width: int, height: int | None = None) -> Sequence[str]:
        """The screen: when, what failed, the verdict, and what the verdicts before it were."""
        from kvbudget.report.diagnosed import diagnosis_lines, screen_lines, wrapped

        head = [f"kvbudget diagnose --watch   {self._clock()}   every {self._every_s:g} s   Ctrl-C ends it"[:width]]
        if self.problem:
            head += wrapped(f"not seen just now: {self.problem}; trying again", width)
            if self.last is not None:
                head.append("what was seen last:")
        elif self.last is None:
            head += ["", *wrapped(self._window if self._began else "asking", width)]
        before = ["", "verdicts so far", *(f"  {when}  {verdict}" for when, verdict in self.history)]
        if self.last is None:
            return head[:height]
        if height is None:
            return [*head, "", *diagnosis_lines(self.last, width), *before[: _SHOWN + 2]]
        kept = before[: max(0, min(_BEFORE, height - len(head) - _LEAST))]
        told = ["", *screen_lines(self.last, width, height - len(head) - len(kept) - 1)]
        return [*[*head, *told][: height - len(kept)], *kept]


@contextlib.contextmanager
def ctrl_c() -> Iterator[Callable[[], bool]]:
    """Gives whether Ctrl-C was pressed. It is raised at once, too; but what is raised while a destructor happens to run
    is ignored, and then nobody would hear of it."""
    pressed = False

    def heard(_: int, __: FrameType | None) -> None:
        nonlocal pressed
        pressed = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, heard)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, before)


def looking(window_s: float, sources: Sequence[str]) -> str:
    """`looking for 10 s at http://...`, without the passwords of the addresses."""
    shown = [printable(source if "@" not in source else "the URL", _LONGEST_SHOWN) for source in sources]
    return f"looking for {window_s:g} s at {', '.join(shown)}"


def _nothing() -> None:
    """Where there is no screen."""
