"""Decides how a test reads one command line, as a shell would hand it over."""

from collections.abc import Callable, Sequence

import pytest

from kvbudget.engines.commands.command import Command, Invocation, Start
from kvbudget.engines.commands.read import command_of
from kvbudget.engines.commands.recognise import starts_of
from kvbudget.engines.commands.shell import processes_in

ReadLine = Callable[[str], Command]


def _starts(text: str) -> list[Start]:
    found: list[Start] = []
    for process in processes_in(text):
        found += starts_of(Invocation(process.argv, process.environment, notes=process.notes))
    return found


@pytest.fixture
def starts() -> Callable[[str], Sequence[Start]]:
    """Every engine that a shell text starts."""
    return _starts


@pytest.fixture
def read_line() -> ReadLine:
    """The one engine command of a shell text."""

    def read(text: str) -> Command:
        (start,) = _starts(text)
        return command_of(start)

    return read
