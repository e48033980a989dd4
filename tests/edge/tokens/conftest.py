"""A tiny byte-level tokenizer with a ChatML template, trained here, and builders of asks."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from kvbudget.edge.openai.ask import Ask, Surface, parse_ask
from kvbudget.edge.tokens.tokenizer import TokenizerCounter

CORPUS = [
    "The pool is what the engine has, in blocks; the request draws from it by its length.",
    "user assistant system tool name arguments type function description parameters",
    "It's 12,345 tokens: naïve café, 你好世界 and {\"a\": [1, 2, null]}.",
    "def blocks_for(tokens, size):\n    return -(-tokens // size)\n",
]  # fmt: skip
SPECIAL = ["<s>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
CHATML = """\
{%- if tools %}
<|im_start|>system
# Tools
{% for tool in tools %}
{{ tool | tojson }}
{% endfor %}
<|im_end|>
{% endif %}
{% for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }} {{ call.function.arguments | tojson }}</tool_call>
{%- endfor %}
<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}
<think></think>
{% endif %}
{%- endif %}
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder: tokenizer.json (NFC, byte-level BPE, BOS by post-processor) and tokenizer_config.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[AddedToken(token, special=True, normalized=False) for token in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made = tmp_path_factory.mktemp("model")
    tokenizer.save(str(made / "tokenizer.json"))
    config = {
        "bos_token": "<s>",
        "eos_token": {"__type": "AddedToken", "content": "<|im_end|>"},
        "chat_template": CHATML,
    }
    (made / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return made


@pytest.fixture(scope="session")
def reference(folder: Path) -> Tokenizer:
    """The same tokenizer.json, read by Hugging Face tokenizers alone."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="session")
def counter(folder: Path) -> TokenizerCounter:
    """The counter of that folder."""
    return TokenizerCounter.load(folder)


@pytest.fixture(scope="session")
def chat() -> Callable[..., Ask]:
    """`chat(messages, **members)`: the Ask of a chat body; a string stands for one user message."""

    def build(messages: str | list[Any], **members: Any) -> Ask:
        listed = [{"role": "user", "content": messages}] if isinstance(messages, str) else messages
        return parse_ask(Surface.CHAT, json.dumps({"messages": listed, **members}).encode())

    return build


@pytest.fixture(scope="session")
def completions() -> Callable[..., Ask]:
    """`completions(prompt, **members)`: the Ask of a completions body."""

    def build(prompt: Any, **members: Any) -> Ask:
        return parse_ask(Surface.COMPLETIONS, json.dumps({"prompt": prompt, **members}).encode())

    return build
