"""Which bytes go to the engine: the client's own, with the granted `max_tokens` cut in when they say otherwise."""

from array import array
from collections.abc import Sequence
from typing import Final

import orjson

from kvbudget.edge.openai.ask import Ask, Surface, TextPrompt, TokenPrompt
from kvbudget.edge.openai.body import Span, member_spans
from kvbudget.edge.openai.fields import has_any

# Other names under which engines read the same cap on the OpenAI routes: SGLang prefers max_tokens to
# max_completion_tokens, llama.cpp prefers n_predict to both. One larger than the grant would undo it.
_ALIASES: Final = ("max_completion_tokens", "max_tokens", "max_new_tokens", "n_predict")
_PLAIN: Final = (int, float, type(None))  # what else a cap may be is no number, and changed whatever it says
_COUNTED: Final = TokenPrompt((1,))  # in place of a prompt that is counted
_OTHER_NAMES: Final = frozenset(name for name in _ALIASES if name != "max_tokens")


# Members with which the engine needs the text of the prompt, or reads another part of it than was counted.
_NEEDS_NO_TEXT: Final = frozenset((
    "echo", "suffix", "truncate_prompt_tokens", "prompt_embeds", "mm_processor_kwargs", "kv_transfer_params",
)).isdisjoint  # fmt: skip


def takes_token_ids(ask: Ask) -> bool:
    """Whether the engine answers the same when the prompt comes as token ids: one text of `/v1/completions`."""
    prompt = ask.prompt
    return (
        ask.surface is Surface.COMPLETIONS
        and isinstance(prompt, TextPrompt)
        and len(prompt.texts) == 1
        and _NEEDS_NO_TEXT(ask.body.keys())
    )


def slimmed(ask: Ask) -> Ask:
    """The same for `forwarded_body`, without what was only there to be counted.

    A body takes up to thirty times its size as objects ([{},{},...]), and it may wait for a minute.
    """
    holder_name, _, field = ask.max_new_field.rpartition(".")
    kept = _few(ask.body, (holder_name or field, *_ALIASES))
    if holder_name and isinstance(holder := ask.body.get(holder_name), dict):
        kept[holder_name] = _few(holder, (field,))
    return ask._replace(body=kept, prompt=_COUNTED)


def _few(holder: dict[str, object], names: Sequence[str]) -> dict[str, object]:
    """Those members of an object that are looked at again; and another one, if it has any, as then it is not empty."""
    kept = {name: holder[name] if isinstance(holder[name], _PLAIN) else "" for name in names if name in holder}
    if len(kept) < len(holder):
        kept[""] = None
    return kept


def forwarded_body(ask: Ask, max_new_tokens: int, token_ids: Sequence[int] | bytes | None = None) -> bytes:
    """The body to send upstream, asking for exactly `max_new_tokens` per sequence; the prompt as `token_ids` if given.

    `ask.raw` itself (the same object) when it already says that, or generates nothing. Else only that number is
    replaced or inserted, and larger caps under other names are lowered to it; every other byte, numbers and escapes
    included, stays as it came.
    """
    body = ask.body
    plain = ask.max_new_field == "max_tokens" and body.get("max_tokens") == max_new_tokens
    if plain and token_ids is None and not has_any(body, _OTHER_NAMES):
        return ask.raw  # what most bodies are, without looking at each name
    if not ask.max_new_field:
        return ask.raw  # nothing is generated
    edits = _edits(ask, max_new_tokens)
    if token_ids is not None:
        listed = array("I", token_ids).tolist() if isinstance(token_ids, bytes) else list(token_ids)
        edits.append((member_spans(ask.raw)["prompt"], orjson.dumps(listed)))
    if not edits:
        return ask.raw
    pieces, at = [], 0
    for span, text in sorted(edits, key=lambda edit: edit[0].start):
        pieces += [ask.raw[at : span.start], text]
        at = span.end
    return b"".join([*pieces, ask.raw[at:]])


def _edits(ask: Ask, granted: int) -> list[tuple[Span, bytes]]:
    holder_name, _, field = ask.max_new_field.rpartition(".")
    holder = ask.body.get(holder_name) if holder_name else ask.body
    aliases = _ALIASES if ask.surface in (Surface.CHAT, Surface.COMPLETIONS) else ()
    number = str(granted).encode()
    if not isinstance(holder, dict):  # absent or null: TGI's `parameters`
        return [_member(ask.raw, 0, ask.body, holder_name, b'{"%b":%b}' % (field.encode(), number))]
    changed = [name for name in aliases if name != field and _exceeds(holder.get(name), granted)]
    if _says(holder.get(field), granted) and not changed:
        return []
    start = member_spans(ask.raw)[holder_name].start if holder_name else 0
    edits = [] if _says(holder.get(field), granted) else [_member(ask.raw, start, holder, field, number)]
    return edits + [_member(ask.raw, start, holder, name, number) for name in changed]


def _member(raw: bytes, start: int, holder: dict[str, object], name: str, value: bytes) -> tuple[Span, bytes]:
    """The edit that gives `name` the value, in the object that begins at or after `start`."""
    if name in holder:
        return member_spans(raw, start)[name], value
    at = raw.index(b"{", start) + 1
    return Span(at, at), b'"%b":%b%b' % (name.encode(), value, b"," if holder else b"")


def _says(value: object, granted: int) -> bool:
    return type(value) is int and value == granted


def _exceeds(value: object, granted: int) -> bool:
    """Whether an engine could read more than the grant here; anything but a small enough integer may be more."""
    return value is not None and not (type(value) is int and 0 <= value <= granted)
