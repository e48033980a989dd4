"""Whether logprobs of a prompt may be computed now: they fill GPU memory that is not the KV cache's.

An engine computes the logits of every prompt token of a step over the whole vocabulary, beside the pool: vLLM 0.32
takes tokens x vocabulary x 6 bytes at its peak (vllm pull request 52054: 7.5 GiB for 8,192 tokens of 152k), and four
lawful requests have killed a service (local-inference-lab/vllm issue 257). So the prompts of all requests that ask for
it are limited together, in tokens, and by default to none.
"""

from kvbudget.edge.openai.errors import BadRequestError
from kvbudget.edge.surfaces.members import WHY_NO_LOGPROBS
from kvbudget.units import Tokens

NONE = Tokens(0)


class PromptLogprobs:
    """Tokens of prompts whose logprobs are being computed. `limit` 0: none ever are."""

    def __init__(self, limit: Tokens = NONE) -> None:
        self.limit = limit
        self.in_use = Tokens(0)

    def check(self, tokens: Tokens) -> None:
        """Raises BadRequestError for a prompt that is longer than may ever be."""
        if tokens > self.limit:
            what = (
                "this gate lets none through (--max-prompt-logprobs-tokens 0)"
                if not self.limit
                else f"{tokens} prompt tokens are more than the {self.limit} that may (--max-prompt-logprobs-tokens)"
            )
            raise BadRequestError(
                f"Logprobs of the prompt (prompt_logprobs, echo with logprobs, decoder_input_details) are not accepted "
                f"here: {what}. {WHY_NO_LOGPROBS.capitalize()}. Leave them out, or send a shorter prompt",
                None,
                "prompt_logprobs_refused",
            )

    def take(self, tokens: Tokens) -> bool:
        """Whether so many more may be computed now; then `give_back` must follow."""
        if self.in_use + tokens > self.limit:
            return False
        self.in_use = Tokens(self.in_use + tokens)
        return True

    def give_back(self, tokens: Tokens) -> None:
        """They are done."""
        self.in_use = Tokens(self.in_use - tokens)
