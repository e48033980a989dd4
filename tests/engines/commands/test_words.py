"""Words and commands end where a shell ends them."""

import pytest

from kvbudget.engines.commands.words import MAX_CHARS, lines_of
from kvbudget.errors import BadValueError


def lines(text: str) -> list[list[str]]:
    return [["".join(piece.text for piece in word.pieces) for word in line.words] for line in lines_of(text)]


def test_operators_and_newlines_end_commands() -> None:
    assert lines("a b; c && d || e | f & g\nh (i)") == [["a", "b"], ["c"], ["d"], ["e"], ["f"], ["g"], ["h"], ["i"]]


def test_continued_lines_are_one_command_and_its_line_is_the_first() -> None:
    text = "\n\nvllm serve \\\n  --a 1 \\\n  --b\necho"
    assert lines(text) == [["vllm", "serve", "--a", "1", "--b"], ["echo"]]
    assert [line.line for line in lines_of(text)] == [3, 6]


def test_quotes_hide_everything_but_what_double_quotes_let_through() -> None:
    assert lines("""x 'a "b" ; #' "c 'd' \\" \\$ \\n" e\\ f $'g\\n' ''""") == [
        ["x", 'a "b" ; #', "c 'd' \" $ \\n", "e f", "g\n", ""]
    ]


def test_comments_begin_at_words_only() -> None:
    assert lines("a b#c # d 'e\nf") == [["a", "b#c"], ["f"]]


def test_redirections_belong_to_no_command() -> None:
    assert lines("a > x 2>&1 b >> y < z &> w <<< t 3>u c") == [["a", "b", "c"]]
    assert lines("a 2 > x") == [["a", "2"]]


def test_here_documents_are_skipped() -> None:
    assert lines("cat <<EOF > f\nvllm serve 'x\nEOF\nb <<-'E'\n q\n\tE\nc") == [["cat"], ["b"], ["c"]]


def test_substitutions_are_one_piece_whatever_is_in_them() -> None:
    assert lines("a $(b ; 'c)' (d)) `e | f` $((1+2)) ${g:-'}'} <(h)") == [
        ["a", "$(b ; 'c)' (d))", "`e | f`", "$((1+2))", "g:-'}'"]
    ]


def test_arrays_are_one_word() -> None:
    (line,) = lines_of("A=(b 'c d' # e\n f) g")
    assert line.words[0].array
    assert len(line.words[0].items) == 3
    assert len(line.words) == 2


@pytest.mark.parametrize(
    ("text", "what"),
    [("a 'b", "'"), ('\n\na "b\n', '"'), ("a `b", "`"), ("a $(b", r"\$\("), ("a ${b", r"\$\{"), ("A=(b", r"\(")],
)
def test_what_is_never_closed_is_named_with_its_line(text: str, what: str) -> None:
    with pytest.raises(BadValueError, match=f"line [13] of the command: {what} is opened"):
        lines_of(text)


def test_a_text_beyond_all_scripts_is_refused() -> None:
    with pytest.raises(BadValueError, match="characters"):
        lines_of("a " * MAX_CHARS)
