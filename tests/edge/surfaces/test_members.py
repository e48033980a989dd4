import pytest

from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.surfaces import members


def test_the_widest_of_n_best_of_and_beam_is_what_runs() -> None:
    assert members.sequences({}) == 1
    assert members.sequences({"n": 2, "best_of": 5, "n_cmpl": 3}) == 5
    assert members.sequences({"use_beam_search": True, "n": 4}) == 4


def test_a_cap_below_one_token_is_one_token() -> None:
    assert members.max_new({"max_tokens": 0}, "max_tokens", low=0) == 1
    assert members.max_new({}, "max_tokens") is None


def test_prompt_logprobs_of_chosen_tokens_are_logprobs_too_and_of_all_are_refused() -> None:
    assert members.prompt_logprobs({"prompt_logprobs": 0})
    assert not members.prompt_logprobs({})
    with pytest.raises(BadRequestError, match="whole vocabulary"):
        members.prompt_logprobs({"prompt_logprobs": -1})
