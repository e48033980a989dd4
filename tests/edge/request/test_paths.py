import pytest

from kvbudget.edge.request.paths import CHARGED, passes


@pytest.mark.parametrize(
    "path",
    [b"/v1/models", b"/v1/models/org/name-7B", b"/v1/audio/speech", b"/tokenize", b"/detokenize", b"/version",
     b"/v1/messages/count_tokens", b"/v1/messages/render", b"/v1/chat/completions/render", b"/v1/responses/r1",
     b"/v1/responses/r1/cancel"],
)  # fmt: skip
def test_what_holds_no_kv_passes(path: bytes) -> None:
    assert passes(path)


@pytest.mark.parametrize(
    "path",
    [b"/v1/chat/completions/batch", b"/v1/chat/completions/", b"/v1/completions/x", b"/v1/%63hat/completions",
     b"/v1//chat/completions", b"/v1/../v1/chat/completions", b"/v1/./chat/completions", b"/v1/chat/completions#x",
     b"/v1/chat\\completions", b"/v1", b"/v1/", b"/reset_prefix_cache", b"/inference/v1/generate", b"/V1/models", b"",
     b"/v1/embeddings/x", b"/v1/messages/count_tokens/x", b"/v1/models;x", b"/v1/mod els", b"/v1/models/..",
     b"/v1/responses/a/b/c", b"/v1/Chat/Completions", b"/v1/COMPLETIONS", b"/v1/Chat/completions/batch"],
)  # fmt: skip
def test_what_could_reach_a_charged_path_by_another_name_does_not_pass(path: bytes) -> None:
    assert not passes(path)


def test_charged_paths_are_those_that_take_blocks() -> None:
    assert set(CHARGED) == {
        b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages", b"/generate",
        b"/generate_stream", b"/v1/embeddings", b"/pooling", b"/classify", b"/v1/score", b"/score", b"/v1/rerank",
        b"/rerank", b"/v2/rerank", b"/v1/reranking",
    }  # fmt: skip
