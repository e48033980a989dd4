from collections.abc import Sequence

from kvbudget.edge.tokens.selftest import first_difference, self_test_strings


def _bytes(text: str, special: bool) -> Sequence[int]:
    return [0, *text.encode()] if special else list(text.encode())


def test_several_hundred_strings_hold_the_added_tokens_in_many_forms() -> None:
    strings = self_test_strings(["<|a|>", "<b>"])
    assert len(strings) > 250
    assert {"<|a|>", "a<b>b", "<b><b>", "<|a|", "<|a|>\n<|A|>"} <= set(strings)
    assert strings == self_test_strings(["<b>", "<|a|>"])


def test_thousands_of_added_tokens_are_sampled() -> None:
    assert len(self_test_strings([f"<{n}>" for n in range(5000)])) < 1000


def test_equal_tokenizers_have_no_difference() -> None:
    assert first_difference(_bytes, _bytes, ["<a>"]) is None


def test_a_difference_on_one_added_token_is_found() -> None:
    def other(text: str, special: bool) -> Sequence[int]:
        return _bytes(text.replace("<a>", "<A>"), special)

    difference = first_difference(_bytes, other, ["<a>"])
    assert difference is not None
    assert "<a>" in difference


def test_a_difference_only_with_special_tokens_is_found() -> None:
    assert first_difference(_bytes, lambda text, _: list(text.encode()), []) is not None


def test_a_tokenizer_that_raises_is_different() -> None:
    def broken(text: str, special: bool) -> Sequence[int]:
        raise ValueError(text)

    assert first_difference(_bytes, broken, []) is not None
