"""Images tell the engine, its version and what they run."""

import pytest

from kvbudget.engines.commands.images import image_named, version_in


@pytest.mark.parametrize(
    ("image", "engine", "version", "entrypoint"),
    [
        ("vllm/vllm-openai:v0.32.0", "vllm", "0.32.0", ("vllm", "serve")),
        ("docker.io/vllm/vllm-openai:v0.32.0-cu129@sha256:abc", "vllm", "0.32.0", ("vllm", "serve")),
        ("registry.example:5000/mirror/vllm-openai-rocm:v0.31.1", "vllm", "0.31.1", ("vllm", "serve")),
        ("vllm/vllm-openai:latest", "vllm", None, ("vllm", "serve")),
        ("vllm/vllm-openai", "vllm", None, ("vllm", "serve")),
        ("nvcr.io/nvidia/vllm:25.09-py3", "vllm", None, ()),
        ("lmsysorg/sglang:v0.5.23-cu129", "sglang", "0.5.23", ()),
        ("ghcr.io/huggingface/text-generation-inference:3.3.6-rocm", "tgi", "3.3.6", ("text-generation-launcher",)),
        ("ghcr.io/huggingface/text-generation-inference:sha-0dbd1e7", "tgi", None, ("text-generation-launcher",)),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.1", "trtllm", "1.2.1", ()),
        ("ghcr.io/ggml-org/llama.cpp:server-cuda-b7406", "llamacpp", "b7406", ("llama-server",)),
        ("ghcr.io/ggml-org/llama.cpp:light", "llamacpp", None, ("llama-cli",)),
        ("ghcr.io/ggml-org/llama.cpp:full-cuda", "llamacpp", None, ()),
        ("postgres:16", "", None, ()),
        ("", "", None, ()),
        ("::@@//", "", None, ()),
    ],
)
def test_an_image_is_known_by_its_name(image: str, engine: str, version: str | None, entrypoint: object) -> None:
    assert image_named(image) == (engine, version, entrypoint)


def test_requirements_tell_a_version() -> None:
    texts = ["vllm==0.32.0", "vllm@0.32.0", "vllm[flashinfer]==0.31", "vllm", "vllm-extra==1.0", "vllm==latest"]
    assert [version_in(text, "vllm") for text in texts] == ["0.32.0", "0.32.0", "0.31", None, None, None]
