"""Decides by which keys the gate knows that two prompts begin alike; none where that cannot be told for certain.

What an engine must not share although the tokens are the same tells the seeds apart: model or adapter, and cache salt
(vLLM 0.32 v1/core/kv_cache_utils.py: generate_block_hash_extra_keys). What makes it read a prompt otherwise than it
was counted gives no keys at all. A part of a seed is drawn anew in each process, or agreed on by a ledger's gates
(`edge.sharing.keys`): nobody outside can aim at a key.
"""

import os
from array import array

from kvbudget.edge.openai.ask import Ask, TokenPrompt
from kvbudget.edge.tokens.count import Count
from kvbudget.pool.chains import agreed_keys_of, chain_keys_of

# No keys beyond: 8,192 of 16 tokens take 1.4 ms of the event loop, and the rest of such a prompt is not credited.
MOST_TOKENS = 131_072
# The engine computes the whole prompt, or runs another one, or several of one request.
_NO_KEYS = frozenset(("echo", "use_beam_search", "prompt_logprobs", "kv_transfer_params", "mm_processor_kwargs"))


class PrefixKeys:
    """Keys of prompts, for one process; for all that have the same `agreed` secret, if there is one."""

    def __init__(self, secret: bytes | None = None) -> None:
        self.agreed: bytes | None = None
        self._secret = os.urandom(16) if secret is None else secret

    def of(self, ask: Ask, count: Count, tokens_per_key: int) -> tuple[int, ...]:
        """Keys of the whole blocks of `tokens_per_key` tokens that the prompt begins with; () where it may share none.

        Empty as well for what was only bounded, for several prompts, and where the ids are not at hand.
        """
        prompts = count.prompt_tokens
        if not count.exact or len(prompts) != 1 or not 0 < tokens_per_key < prompts[0]:
            return ()
        body = ask.body
        if ask.truncate_prompt_tokens is not None or not _NO_KEYS.isdisjoint(body):
            return ()
        salt = body.get("cache_salt")
        if salt is not None and not isinstance(salt, str):
            return ()
        ids = count.token_ids
        if ids is None and isinstance(ask.prompt, TokenPrompt):
            ids = _given_ids(body.get("prompt"))
        if ids is None:
            return ()
        if not isinstance(ids, bytes):
            try:
                ids = array("I", ids[:MOST_TOKENS]).tobytes()
            except OverflowError:  # no id that any engine has
                return ()
        data = ids[: 4 * MOST_TOKENS]
        if self.agreed is not None:
            return agreed_keys_of(data, tokens_per_key, self.agreed, ascii((ask.model, salt)).encode())
        return chain_keys_of(data, tokens_per_key, hash((self._secret, ask.model, salt)))


def _given_ids(prompt: object) -> list[int] | None:
    """`[1, 2]` or `[[1, 2]]`, checked when the body was read."""
    if not isinstance(prompt, list) or not prompt:
        return None
    return prompt[0] if isinstance(prompt[0], list) else prompt
