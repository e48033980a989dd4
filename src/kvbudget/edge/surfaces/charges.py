"""What a request holds where that is not its prompt and its output: a whole window, or its prompts during prefill."""

from kvbudget.edge.surfaces.ask import Ask
from kvbudget.gate.gate import Gate
from kvbudget.units import Tokens

# What the encoding of a pair adds: separators of a cross-encoder, or the instruction around a query and a document
# of an LLM reranker (Qwen3-Reranker's has about 60).
PAIR_TOKENS = 128


def whole_window(ask: Ask, prompts: tuple[Tokens, ...], gate: Gate) -> tuple[Tokens, ...]:
    """Its prompt is not in the request (an earlier response that the engine has stored): it may fill what the window
    leaves beside its output, and no more, because no engine runs a sequence beyond it."""
    return (Tokens(max(1, gate.max_context - (ask.max_new_tokens or 1))),)


def within_window(ask: Ask, prompts: tuple[Tokens, ...], gate: Gate) -> tuple[Tokens, ...]:
    """Its count; the engine truncates what is longer than its window (the ask is `inexact`, so the gate does too)."""
    return prompts


def prefill_only(ask: Ask, prompts: tuple[Tokens, ...], gate: Gate) -> tuple[Tokens, ...]:
    """Prompts that nothing is generated for: each is held while it is computed, and given back in the step that
    completes it.

    A step computes at most its budget of tokens, so that beside one prompt that several steps compute no more than a
    budget is held at once: of a list so many of the longest are charged as reach that. The last token of each stands
    for the one output token that a promise is made of, so a prompt of n tokens is charged the blocks of n.
    """
    return _held_together([Tokens(max(1, length - 1)) for length in prompts], gate)


def pairs(ask: Ask, prompts: tuple[Tokens, ...], gate: Gate) -> tuple[Tokens, ...]:
    """As `prefill_only`, of a query (the first prompt) with each of the others: engines join or wrap them in a way of
    the model's."""
    query, *documents = prompts
    return _held_together([Tokens(query + length + PAIR_TOKENS) for length in documents], gate)


def matched_pairs(ask: Ask, prompts: tuple[Tokens, ...], gate: Gate) -> tuple[Tokens, ...]:
    """As `pairs`, of as many queries as documents, which follow them in the same order."""
    half = len(prompts) // 2
    joined = zip(prompts[:half], prompts[half:], strict=True)
    return _held_together([Tokens(query + length + PAIR_TOKENS) for query, length in joined], gate)


def windows(ask: Ask, prompts: tuple[Tokens, ...], gate: Gate) -> tuple[Tokens, ...]:
    """As `prefill_only`, of inputs that cannot be counted (images): each may fill the window."""
    whole = Tokens(max(1, gate.max_context - 1))
    return _held_together([whole] * len(prompts), gate)


def _held_together(lengths: list[Tokens], gate: Gate) -> tuple[Tokens, ...]:
    longest_first = sorted(lengths, reverse=True)
    most_tokens = gate.config.prefill_tokens_per_step + longest_first[0]
    layout, most_blocks = gate.ledger.layout, gate.ledger.capacity_blocks
    held: list[Tokens] = []
    tokens = blocks = 0
    for length in longest_first[: gate.config.max_num_seqs]:
        blocks += layout.blocks_for(length + 1)
        if held and blocks > most_blocks:
            break  # the engine lets the rest wait: it has no more than that either
        held.append(length)
        tokens += length
        if tokens >= most_tokens:
            break
    return tuple(held)
