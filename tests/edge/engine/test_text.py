import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.edge.engine import text
from kvbudget.edge.engine.text import Answer

texts = st.text(st.characters(exclude_categories=["Cs"]))
chats = st.lists(st.tuples(texts, texts), max_size=4)


@pytest.mark.parametrize(("sample", "tokens"), [("", 0), ("a", 1), ("abcd", 1), ("abcde", 2), ("äöü", 2), ("😀", 1)])
def test_a_token_is_a_started_4_bytes_of_utf8(sample: str, tokens: int) -> None:
    assert text.count_text(sample) == tokens


def test_a_chat_frames_each_message_with_4_tokens_and_opens_the_answer_with_3() -> None:
    assert text.count_chat([("user", "hello")], b"") == 4 + 1 + 2 + 3
    assert text.count_chat([("user", "hello")], b'[{"a":1}]') == 4 + 1 + 2 + 3 + 3


@given(texts)
def test_ids_of_a_text_name_its_bytes_and_are_as_many_as_counted(sample: str) -> None:
    ids = text.text_ids(sample)
    assert len(ids) == text.count_text(sample)
    assert b"".join(map(text.id_bytes, ids)).decode() == sample
    assert all(0 <= token < text.VOCABULARY for token in ids)


@given(chats, st.binary(max_size=0) | st.just(b'[{"name":"f"}]'))
def test_ids_of_a_chat_are_as_many_as_counted(messages: list[tuple[str, str]], tools: bytes) -> None:
    assert len(text.chat_ids(messages, tools)) == text.count_chat(messages, tools)


@pytest.mark.parametrize("token_id", [-1, text.VOCABULARY + 7])
def test_an_id_outside_of_the_vocabulary_is_refused(token_id: int) -> None:
    with pytest.raises(ValueError, match=str(token_id)):
        text.id_bytes(token_id)


def test_framing_tokens_name_no_bytes() -> None:
    assert text.id_bytes(text.VOCABULARY) == text.id_bytes(text.VOCABULARY + 6) == b""


def test_an_answer_of_k_tokens_counts_k_tokens_again() -> None:
    answer = Answer(text.text_prompt("hi"), None, 0, 128)
    pieces = [answer.next_piece() for _ in range(500)]
    assert {len(piece) for piece in pieces} == {4}
    whole = b"".join(pieces).decode()
    assert text.count_text(whole) == 500
    assert not whole.isascii()
    assert not set(whole) & set('"\\\n')


def test_the_same_request_gets_the_same_answer_and_another_seed_choice_or_prompt_another() -> None:
    def begin(prompt: str, seed: int | None, choice: int) -> tuple[bytes, int]:
        answer = Answer(text.text_prompt(prompt), seed, choice, 1000)
        return b"".join(answer.next_piece() for _ in range(20)), answer.natural_tokens

    assert begin("hi", None, 0) == begin("hi", None, 0)
    assert (
        len({begin("hi", None, 0), begin("hi", 0, 0), begin("hi", 1, 0), begin("hi", None, 1), begin("ho", None, 0)})
        == 5
    )


def test_natural_lengths_keep_the_mean_that_was_set() -> None:
    lengths = [Answer(text.text_prompt(str(n)), None, 0, 50).natural_tokens for n in range(2000)]
    assert 48 < sum(lengths) / len(lengths) < 52
    assert (min(lengths), max(lengths)) == (1, 99)
