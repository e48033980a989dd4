"""Which image parts of a chat are accepted, and how large each image is, from the first bytes of a data URL alone.

Nothing is decoded but headers: PNG, JPEG, WebP, GIF and BMP say their width and height within them, and the engine's
decoder (Pillow) takes the same ones. An image behind a URL has no size here: it counts as the largest.
"""

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import NamedTuple

from kvbudget.edge.openai.errors import BadRequestError, shown

IMAGE_PARTS = frozenset(("image_url", "input_image"))
# As vLLM's own limit on pixels (Pillow's): a larger image is refused by the engine.
MAX_SIDE = 1 << 16
# Base64 characters that are decoded first; headers stand within them, unless metadata comes before (JPEG).
_HEAD_CHARS = 4096
_NOT_SIZES = frozenset((0xC4, 0xC8, 0xCC))  # JPEG: tables, not frames
_LONE = frozenset((0x01, *range(0xD0, 0xD8)))  # JPEG: markers without a length
_START_OF_SCAN = 0xDA


class ImageSize(NamedTuple):
    """In pixels."""

    width: int
    height: int


def check_image_part(part: Mapping[str, object], at: str) -> None:
    """Raise BadRequestError for an image part that is not `{"type", "image_url": URL or {"url"}}`."""
    url = url_of(part)
    if url is None:
        raise BadRequestError(f"{at}.image_url must be a URL or an object with `url`", f"{at}.image_url")
    if url[:5].lower() == "data:" and size_of(url) is None:
        raise BadRequestError(
            f"{at}.image_url is no base64 data URL of a PNG, JPEG, WebP, GIF or BMP image: {shown(url[:40])}",
            f"{at}.image_url",
            "unsupported_content_part",
        )


def url_of(part: Mapping[str, object]) -> str | None:
    """The image's URL; None when the part has none."""
    url = part.get("image_url")
    if isinstance(url, Mapping):
        url = url.get("url")
    return url if isinstance(url, str) and url else None


def size_of(url: str) -> ImageSize | None:
    """Of the image in a data URL; None for other URLs and for what cannot be read."""
    head, comma, data = url.partition(",")
    if not comma or head[:5].lower() != "data:" or not head.lower().endswith(";base64"):
        return None
    try:
        size = _size_in(base64.b64decode(data[:_HEAD_CHARS], validate=True))
        if size is None and len(data) > _HEAD_CHARS:
            size = _size_in(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError, struct.error, IndexError):
        return None
    return size if size is not None and min(size) > 0 and max(size) <= MAX_SIDE else None


def _size_in(data: bytes) -> ImageSize | None:
    if data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR":
        return ImageSize(*struct.unpack_from(">II", data, 16))
    if data[:6] in (b"GIF87a", b"GIF89a"):
        return ImageSize(*struct.unpack_from("<HH", data, 6))
    if data[:2] == b"BM" and len(data) >= 26:
        width, height = struct.unpack_from("<ii", data, 18)
        return ImageSize(abs(width), abs(height))
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return _webp(data)
    return _jpeg(data) if data[:2] == b"\xff\xd8" else None


def _webp(data: bytes) -> ImageSize | None:
    kind = data[12:16]
    if kind == b"VP8X":
        width = int.from_bytes(data[24:27], "little") + 1
        height = int.from_bytes(data[27:30], "little") + 1
        return ImageSize(width, height) if len(data) >= 30 else None
    if kind == b"VP8L" and len(data) >= 25:
        bits = int.from_bytes(data[21:25], "little")
        return ImageSize((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return ImageSize(width & 0x3FFF, height & 0x3FFF)
    return None


def _jpeg(data: bytes) -> ImageSize | None:
    """The largest frame before the scan: what a decoder takes, and never less."""
    at, size = 2, None
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF or marker in _LONE:
            at += 1 if marker == 0xFF else 2
            continue
        if marker == _START_OF_SCAN:
            return size
        if 0xC0 <= marker <= 0xCF and marker not in _NOT_SIZES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            if size is None or width * height > size.width * size.height:
                size = ImageSize(width, height)
        at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return None
