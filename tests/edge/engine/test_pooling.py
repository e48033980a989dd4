import base64
import struct
from collections.abc import Callable
from typing import Any

import pytest

from kvbudget.edge.engine.pooling import DIMENSIONS

Run = Callable[..., None]


def test_a_text_has_one_vector_however_it_is_asked_for(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        plain = (await bench.client.post("/v1/embeddings", json={"input": ["a", "b", "a"]})).json()
        first, second, third = (entry["embedding"] for entry in plain["data"])
        assert first == third != second
        assert (len(first), round(sum(number**2 for number in first), 6)) == (DIMENSIONS, 1.0)
        assert plain["usage"]["prompt_tokens"] == 3
        coded = (await bench.client.post("/v1/embeddings", json={"input": "a", "encoding_format": "base64"})).json()
        numbers = struct.unpack(f"<{DIMENSIONS}f", base64.b64decode(coded["data"][0]["embedding"]))
        assert list(numbers) == pytest.approx(first, abs=1e-6)

    with_engine(scenario)


@pytest.mark.parametrize(("path", "member"), [("/pooling", "data"), ("/classify", "probs")])
def test_chats_and_ids_are_pooled_as_texts_are(with_engine: Run, path: str, member: str) -> None:
    async def scenario(bench: Any) -> None:
        chat = (await bench.client.post(path, json={"messages": [{"role": "user", "content": "hi"}]})).json()
        assert len(chat["data"][0][member]) == DIMENSIONS
        ids = (await bench.client.post(path, json={"input": [[1, 2, 3], [4]]})).json()
        assert ids["usage"]["prompt_tokens"] == 4

    with_engine(scenario)


def test_documents_are_ranked_by_their_scores(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        documents = ["he", "she", "it", "they"]
        ranked = (await bench.client.post("/v1/rerank", json={"query": "who", "documents": documents})).json()
        scores = [result["relevance_score"] for result in ranked["results"]]
        assert scores == sorted(scores, reverse=True)
        assert {result["document"]["text"] for result in ranked["results"]} == set(documents)
        scored = (await bench.client.post("/v1/score", json={"queries": "who", "documents": documents})).json()
        by_index = {result["index"]: result["relevance_score"] for result in ranked["results"]}
        assert {entry["index"]: entry["score"] for entry in scored["data"]} == by_index
        top = await bench.client.post("/v2/rerank", json={"query": "who", "documents": documents, "top_n": 1})
        assert top.json()["results"] == ranked["results"][:1]

    with_engine(scenario)


def test_a_prompt_of_the_whole_window_is_taken_and_one_more_token_is_not(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        assert (await bench.client.post("/v1/embeddings", json={"input": "x" * 4 * 64})).status_code == 200
        assert (await bench.client.post("/v1/embeddings", json={"input": "x" * 4 * 65})).status_code == 400
        for path, wrong in (
            ("/v1/embeddings", {"input": [""]}),
            ("/v1/embeddings", {}),
            ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}),
            ("/rerank", {"query": "a", "documents": [5]}),
            ("/rerank", {"query": "a", "documents": ["b"], "top_n": "1"}),
            ("/rerank", {"query": "a", "documents": ["b"], "top_n": [1]}),
            ("/v1/rerank", {"query": "a", "documents": ["b"], "top_n": -1}),
            ("/v2/rerank", {"query": "a", "documents": ["b"], "top_n": True}),
            ("/v1/reranking", {"query": "a", "documents": ["b"], "top_n": {"a": 1}}),
        ):
            assert (await bench.client.post(path, json=wrong)).status_code == 400

    with_engine(scenario, max_model_len=64)


def test_other_dimensions_than_it_has_are_refused(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        for wanted, status in ((5, 400), (DIMENSIONS, 200), (None, 200)):
            answer = await bench.client.post("/v1/embeddings", json={"input": "a", "dimensions": wanted})
            assert answer.status_code == status
        assert "have 8 numbers" in (await bench.client.post("/pooling", json={"input": "a", "dimensions": 9})).text

    with_engine(scenario)
