"""The ledger page in Chinese: every finding has its text, and no sentence of the planner stays English."""

import json
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest

from kvbudget.diagnose.verdict import CODES
from kvbudget.edge.web.asked import asked_in
from kvbudget.edge.web.examples import examples_told
from kvbudget.edge.web.pages import _document, _State
from kvbudget.errors import InputError

TEXT = (files("kvbudget.edge.web") / "static" / "chinese.js").read_text(encoding="utf-8")
CHINESE: dict[str, Any] = json.loads(TEXT[TEXT.index("{") : TEXT.index("\n};") + 2])
PHRASES = [(re.compile(one), re.sub(r"\$(\d)", r"\\\1", to)) for one, to in CHINESE["phrases"]]
REFERENCE = Path(__file__).parents[3] / "docs" / "reference.md"
QUERIES = [
    *[one["query"] for one in examples_told() if one["page"] == "/ledger"],
    "gpu=h100",
    "gpu_memory=24GiB&weights=22GiB&concurrency=50",
    "model=Llama-3.1-8B&gpu=h100&concurrency=40&price_per_hour=2&prompt_lengths=p50=800,p95=4000&output_lengths=300",
    "model=gpt-oss-20b&gpu=l40s",
    "model=gpt-oss-120b&gpu=h100:4&tp=4&context=128k",
    "model=DeepSeek-V3&gpu=h200:8&tp=8",
    "model=DeepSeek-V3.2&gpu=h200:8&tp=8&context=128k",
    "model=Qwen3.5-35B-A3B&gpu=h100&concurrency=2000",
    "model=Llama-3.1-405B&gpu=h100",
    "model=Llama-3.1-70B&gpu=h100:16&tp=16&context=32k",
    "model=Gemma-4-26B-A4B&gpu=h100&context=32k&concurrency=8&prompt_lengths=p50=800,p95=4000&output_lengths=300",
    "model=Qwen3-8B&gpu=rtx-4090&dtype=fp8&context=40000&concurrency=1000&max_num_seqs=64",
]
# Names of the field and of the engine, which are the same in every language.
_NAMES = re.compile(
    r"--[a-z-]+(?: [\w.]+)?|[A-Za-z]+_[A-Za-z_]+|\b(?:KV|MLA|MHA|GQA|GPU|GiB|MiB|KiB|GB|CUDA|graphs|torch|vllm|"
    r"config\.json|heads?|token|tokens|rank|mamba|full|Retry-After|hash_ids|ids|fp\d+|mxfp4|bfloat16|auto|p\d\d|MiB|x|B|null|latent)\b"
)


def in_chinese(text: str) -> str:
    for pattern, to in PHRASES:
        text = pattern.sub(to, text)
    return text


def _sentences(query: str) -> Iterator[str]:
    try:
        document: Any = _document(_State(asked_in(dict(parse_qsl(query)))))
    except InputError as error:
        pytest.fail(f"{query}: {error}")
    yield document["verdict"]["word"]
    if document["verdict"]["good"]:  # else the page says the first finding
        yield document["verdict"]["sentence"]
    yield from document["formula"]
    for part in document["bar"]:
        yield part["note"]
    for row in document["naive"]:
        yield from (row["name"], row["why"], row["said_text"], row["ours_text"])
    for row in document["retreat"]:
        yield from (row["name"], row["flag"], row["note"])
    for row in document["changes"]:
        yield from (str(row["before"]), str(row["after"]))


@pytest.mark.parametrize("query", QUERIES)
def test_no_sentence_of_the_planner_stays_english(query: str) -> None:
    english = [
        text for text in _sentences(query) if re.search("[a-z]{3}", _NAMES.sub("", in_chinese(text)))
    ]  # fmt: skip
    assert english == []


def test_every_finding_has_a_text() -> None:
    table = REFERENCE.read_text(encoding="utf-8").partition("## Findings of kvbudget plan")[2].partition("\n## ")[0]
    codes = set(re.findall(r"^\| `([a-z_0-9]+)` \|", table, re.MULTILINE))
    assert len(codes) > 50
    assert CHINESE["findings"].keys() == codes
    assert all(len(texts) == 2 and all(texts) for texts in CHINESE["findings"].values())


def test_every_verdict_has_a_text() -> None:
    assert CHINESE["verdicts"].keys() == CODES.keys()
    assert all(len(texts) == 2 and all(texts) for texts in CHINESE["verdicts"].values())
    assert all(re.search("[\u4e00-\u9fff]", text) for texts in CHINESE["verdicts"].values() for text in texts)
    assert not CHINESE["verdicts"].keys() & CHINESE["findings"].keys()


@pytest.mark.parametrize(
    "query", ["layers=0", "context=x", "weights=x", "gpu=nope", "utilization=2&gpu=h100", "price_per_hour=-"]
)
def test_what_is_wrong_with_a_field_is_told_in_chinese(query: str) -> None:
    with pytest.raises(InputError) as refused:
        _document(_State(asked_in(dict(parse_qsl(query)))))
    assert re.search("[\u4e00-\u9fff]", in_chinese(str(refused.value)))


def test_patterns_mean_the_same_to_both_languages() -> None:
    """Tried here with Python: nothing in them that JavaScript reads otherwise."""
    for one, to in CHINESE["phrases"]:
        assert not re.search(r"\(\?[^:!=]|\\[AZzGK]|\(\?P", one)
        assert set(re.findall(r"\$(\d)", to)) <= {str(n) for n in range(1, re.compile(one).groups + 1)}
