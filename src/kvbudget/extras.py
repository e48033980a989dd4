"""Which libraries each extra brings, so that a message can say what to install.

By their own names: `pip install 'kvbudget[redis]'` or `'.[redis]'` is right for one way of installing kvbudget only,
these are for all. A test holds the table to pyproject.toml.
"""

from typing import Final

EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "report": ("altair>=5.5", "vl-convert-python>=1.7"),
    "gate": (
        "uvloop>=0.22", "httptools>=0.7", "jiter>=0.8", "orjson>=3.10", "fastokens>=0.3.5", "tokenizers>=0.22",
        "jinja2>=3.1.6", "starlette>=0.46", "uvicorn>=0.34", "prometheus-client>=0.21", "aiohttp>=3.10",
    ),
    "envoy": ("grpcio>=1.80", "protobuf>=6.30"),
    "mistral": ("mistral-common[sentencepiece]>=1.8",),
    "redis": ("hiredis>=3.1",),
}  # fmt: skip


def install(*extras: str) -> str:
    """The command that brings what these extras do."""
    return f"pip install {' '.join(repr(library) for extra in extras for library in EXTRAS[extra])}"
