"""Decides whose API key a request brings, and what that key may ask for; of keys only SHA-256 digests are known.

A key is 256 random bits, so a plain digest cannot be searched; it is looked up by value, so that nothing is compared
byte by byte. Without any key in the settings nobody is asked for one.
"""

import hashlib
import secrets
from collections.abc import Mapping
from typing import NamedTuple

from kvbudget.edge.http.messages import Headers
from kvbudget.edge.openai.errors import UnauthorizedError

_PREFIX = "kvb-"
_RANDOM_BYTES = 32
_LONGEST_KEY = 512  # bytes of the header that holds it
_REMEMBERED = 4096  # raw headers whose key is known, so that not every request costs a digest


class ApiKey(NamedTuple):
    """A key as it is set up. `name` is for people and logs, never the key itself.

    `most_urgent`: the smallest priority that it may ask for. `any_tenant`: a request may name another tenant than
    `tenant` in x-kvbudget-tenant, as a gateway before us does.
    """

    name: str
    sha256: str
    tenant: str
    most_urgent: int = 0
    any_tenant: bool = False


class KeyRing:
    """All keys that are set up."""

    def __init__(self, keys: Mapping[str, ApiKey] | None = None) -> None:
        self._by_digest: dict[bytes, ApiKey] = {}
        self._seen: dict[bytes, ApiKey] = {}
        self.replace({} if keys is None else keys)

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    def replace(self, keys: Mapping[str, ApiKey]) -> None:
        """From now on these, and no others."""
        self._by_digest = {bytes.fromhex(key.sha256): key for key in keys.values()}
        self._seen = {}

    def holder(self, headers: Headers) -> ApiKey:
        """The key that a request brings: `Authorization: Bearer KEY`, or `x-api-key: KEY` as Anthropic's clients send.

        Raises UnauthorizedError, which says what is missing and nothing of what was sent.
        """
        sent = None
        for name, value in headers:
            if name in (b"authorization", b"x-api-key"):
                if sent is not None and sent != value:
                    raise UnauthorizedError("Two API keys were sent; send one.")
                sent = value
        if sent is None:
            raise UnauthorizedError("No API key was sent; send Authorization: Bearer KEY.")
        known = self._seen.get(sent)
        if known is None:
            known = self._by_digest.get(hashlib.sha256(_bare(sent)).digest())
            if known is None:
                raise UnauthorizedError("The API key is not known here.")
            if len(self._seen) < _REMEMBERED:
                self._seen[sent] = known
        return known


def new_key() -> tuple[str, str]:
    """A fresh key, and the digest of it that is to be kept."""
    key = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    return key, hashlib.sha256(key.encode()).hexdigest()


def _bare(header: bytes) -> bytes:
    """The key in a header's value, without `Bearer`; none where that is too long: raw headers are remembered."""
    if len(header) > _LONGEST_KEY:
        return b""
    scheme, _, rest = header.partition(b" ")
    return rest.strip() if scheme.lower() == b"bearer" else header
