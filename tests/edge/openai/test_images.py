import base64
import io
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from kvbudget.edge.openai.images import ImageSize, size_of

FORMATS: dict[str, dict[str, Any]] = {
    "png": {}, "gif": {}, "bmp": {}, "jpeg": {}, "webp": {}, "webp lossless": {"lossless": True},
    "webp extended": {"exif": b"Exif\x00\x00" + b"\x00" * 64}, "jpeg progressive": {"progressive": True},
    "jpeg with metadata": {"exif": b"Exif\x00\x00" + b"\x00" * 60_000},
}  # fmt: skip
SIDES = st.integers(1, 600)


def _url(data: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _picture(kind: str, width: int, height: int) -> bytes:
    held = io.BytesIO()
    Image.new("RGB", (width, height), (1, 2, 3)).save(held, kind.split(maxsplit=1)[0], **FORMATS[kind])
    return held.getvalue()


@pytest.mark.parametrize("kind", FORMATS)
@given(SIDES, SIDES)
@settings(max_examples=25, deadline=None)
def test_the_size_is_read_from_the_head_as_pillow_reads_it(kind: str, width: int, height: int) -> None:
    data = _picture(kind, width, height)
    assert size_of(_url(data)) == (width, height) == Image.open(io.BytesIO(data)).size


@pytest.mark.parametrize("kind", FORMATS)
@given(st.integers(0, 200), st.binary(max_size=40))
@settings(max_examples=60, deadline=None)
def test_a_damaged_image_has_a_size_or_none_and_breaks_nothing(kind: str, at: int, junk: bytes) -> None:
    data = _picture(kind, 40, 30)
    for damaged in (data[:at], data[:at] + junk + data[at + len(junk) :], junk + data):
        size = size_of(_url(damaged))
        assert size is None or min(size) > 0


def test_of_several_frames_the_largest_counts() -> None:
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 8, 8, 10, 10, 0)
    larger = b"\xff\xc2" + struct.pack(">HBHHB", 8, 8, 500, 400, 0)
    end = b"\xff\xda" + struct.pack(">H", 2)
    assert size_of(_url(b"\xff\xd8" + b"\xff\xff" + frame + larger + end)) == ImageSize(400, 500)
    assert size_of(_url(b"\xff\xd8" + larger + frame + end)) == ImageSize(400, 500)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a.png", "data:image/png;base64", "data:image/png,abc", "data:image/png;base64,@@@",
        "data:image/png;base64,", "data:image/svg+xml;base64,PHN2Zy8+", "", "data:,", "file:///etc/passwd",
    ],
)  # fmt: skip
def test_what_holds_no_image_has_no_size(url: str) -> None:
    assert size_of(url) is None


def test_a_side_beyond_every_decoder_is_no_size() -> None:
    head = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR"
    assert size_of(_url(head + struct.pack(">II", 1 << 17, 1))) is None
    assert size_of(_url(head + struct.pack(">II", 0, 1))) is None
