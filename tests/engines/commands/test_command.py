"""What is shown of a hostile command can be printed anywhere."""

from kvbudget.engines.commands.command import UNRESOLVED, Unmodelled, shown


def test_shown_text_is_bounded_and_printable() -> None:
    assert shown("a\x1b[31m\n" + "x" * 1000) == "a?[31m?" + "x" * 53
    assert shown(f"{UNRESOLVED}$MODEL") == "$MODEL"


def test_an_unmodelled_flag_tells_its_reason() -> None:
    assert str(Unmodelled("--a", "", "why")) == "--a (why)"
