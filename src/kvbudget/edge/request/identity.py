"""Who sends a request, how urgent it is and until when: read from its headers, bounded, never trusted further."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import ClassVar, Final

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.messages import Headers
from kvbudget.edge.openai.errors import BadRequestError, CodedBodyError
from kvbudget.edge.request.keys import ApiKey, KeyRing
from kvbudget.gate.tenants.settings import ALL_OTHERS
from kvbudget.values import Value

DEFAULT_TENANT: Final = "default"
OTHER_TENANTS: Final = "other"
# Every tenant is a metric label; a client that invents names must not be able to blow up the scrape.
MAX_TENANTS: Final = 256
_MAX_PRIORITY: Final = 100
# Each priority is a class of its own, and fairness looks at all of them at every decision. Whoever comes with yet
# another one is of the nearest class that there is.
MAX_CLASSES: Final = 16
_MAX_DEADLINE_MS: Final = 86_400_000
_NAME: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")
# OpenAI's clients send the one, Anthropic's the other.
_CREDENTIALS: Final = frozenset((b"authorization", b"x-api-key"))
_PLAIN_CODINGS: Final = frozenset((b"", b"identity"))
_OWN: Final = frozenset((b"x-kvbudget-tenant", b"x-kvbudget-priority", b"x-kvbudget-deadline-ms"))
_INTEGER: Final = re.compile(rb"[+-]?[0-9]{1,9}")


class Identity(Value):
    """Request id, tenant, priority (smaller is more urgent, as vLLM), and the time in which it must be forwarded."""

    _fields: ClassVar = ("request_id", "tenant", "priority", "deadline_ns")
    __slots__ = _fields

    def __init__(
        self,
        request_id: bytes,
        tenant: str = DEFAULT_TENANT,
        priority: int = 0,
        deadline_ns: int | None = None,
    ) -> None:
        self.request_id: Final = request_id
        self.tenant: Final = tenant
        self.priority: Final = priority
        self.deadline_ns: Final = deadline_ns  # from its arrival


class _Said:
    """What a head says that comes again and again: the client's own request id if it names one, and the rest.

    `by`: as long as the same tenants and classes are expected. Without `identity` it is refused, each time anew.
    """

    __slots__ = ("by", "identity", "request_id")

    def __init__(self, by: object, request_id: bytes | None, identity: Identity | None) -> None:
        self.by = by
        self.request_id = request_id
        self.identity = identity


class Identities:
    """Reads identities; remembers the tenants. From `MAX_TENANTS` on, new ones are accounted together as `other`."""

    def __init__(
        self,
        request_id_prefix: str,
        known: Iterable[str] = (),
        classes: Iterable[int] = (),
        ring: KeyRing | None = None,
    ) -> None:
        """`known`, `classes`: tenants and priorities that have settings of their own, never taken for others.

        `ring`: the API keys that are asked for; with none in it, everybody may come.
        """
        self.ring = KeyRing() if ring is None else ring
        self.tenants = {DEFAULT_TENANT}
        self._classes = {0}
        self.expect(known, classes)
        self._keys: dict[bytes, str] = {}
        self._prefix = request_id_prefix.encode()
        self._named = 0  # requests that got an id of ours

    def request_id_of(self, exchange: Exchange) -> bytes:
        """As `request_id`, of an exchange; a head that is known is not looked through again."""
        known = exchange.known
        if known is None:
            return self.request_id(exchange.headers)
        said = known.said
        if type(said) is not _Said or said.by is not self._by:
            said = known.said = self._said(known.head.headers)
        return said.request_id or self._new_id()

    def read_of(self, exchange: Exchange, request_id: bytes) -> Identity:
        """As `read`, of an exchange. Raises BadRequestError."""
        said = None if exchange.known is None else exchange.known.said
        if type(said) is not _Said or said.identity is None or said.by is not self._by:
            return self.read(exchange.headers, request_id)
        who = said.identity
        return Identity(request_id, who.tenant, who.priority, who.deadline_ns)

    def _said(self, headers: Headers) -> _Said:
        own = [value for name, value in headers if name == b"x-request-id" and _REQUEST_ID.fullmatch(value)]
        try:
            identity = self.read(headers, b"")
        except BadRequestError:
            identity = None
        return _Said(self._by, own[0] if own else None, identity)

    def expect(self, known: Iterable[str], classes: Iterable[int] = ()) -> None:
        """These tenants and priorities may come, however many were invented before."""
        self._by = object()
        self.tenants.update(name for name in known if name != ALL_OTHERS)
        self._classes.update(classes)

    def set_keys(self, keys: Mapping[str, ApiKey]) -> None:
        """From now on these API keys, and no others."""
        self._by = object()  # who a known head was of may have changed
        self.ring.replace(keys)

    def request_id(self, headers: Headers) -> bytes:
        """`x-request-id`: the client's own where it is printable, else one of ours."""
        for name, value in headers:
            if name == b"x-request-id" and _REQUEST_ID.fullmatch(value):
                return value
        return self._new_id()

    def _new_id(self) -> bytes:
        self._named += 1
        return b"%b-%d" % (self._prefix, self._named)

    def read(self, headers: Headers, request_id: bytes) -> Identity:
        """Reads `x-kvbudget-tenant` (else the API key), `x-kvbudget-priority` and `x-kvbudget-deadline-ms`.

        Where API keys are set up, the key says which tenant it is and how urgent it may be. Raises BadRequestError,
        UnauthorizedError; CodedBodyError for a body that is compressed.
        """
        holder = self.ring.holder(headers) if self.ring else None
        credential = named = deadline_ns = None
        priority = 0
        read: set[bytes] = set()
        for name, value in headers:
            if name in _CREDENTIALS:
                credential = value
            elif name == b"content-encoding" and value.lower() not in _PLAIN_CODINGS:
                raise CodedBodyError  # here, as this is what a head that comes again is looked through for once
            if name not in _OWN:
                continue
            if name in read:
                raise _twice(name)  # or whoever reads the other one, a proxy before us, means somebody else
            read.add(name)
            if name == b"x-kvbudget-tenant":
                named = _tenant_name(value)
            elif name == b"x-kvbudget-priority":
                priority = _integer(name, value, -_MAX_PRIORITY, _MAX_PRIORITY)
            elif name == b"x-kvbudget-deadline-ms":
                deadline_ns = _integer(name, value, 1, _MAX_DEADLINE_MS) * 1_000_000
        if holder is not None:
            named, priority = _tenant_by(holder, named), max(priority, holder.most_urgent)
        if named is not None and named != DEFAULT_TENANT:
            tenant = self._account_for(named)
        elif credential is not None and holder is None:
            tenant = self._tenant_of_credential(credential)
        else:
            tenant = DEFAULT_TENANT
        return Identity(request_id, tenant, self._class_for(priority), deadline_ns)

    def _class_for(self, priority: int) -> int:
        if priority not in self._classes:
            if len(self._classes) >= MAX_CLASSES:
                return min(self._classes, key=lambda known: (abs(known - priority), known))
            self._classes.add(priority)
        return priority

    def _tenant_of_credential(self, header: bytes) -> str:
        """Each API key is a tenant of its own, named by a hash: the key itself must reach no label and no log."""
        known = self._keys.get(header)
        if known is None:
            known = self._account_for("key-" + hashlib.sha256(header).hexdigest()[:12])
            if len(self._keys) < MAX_TENANTS:
                self._keys[header] = known
        return known

    def _account_for(self, name: str) -> str:
        if name not in self.tenants:
            if len(self.tenants) >= MAX_TENANTS:
                return OTHER_TENANTS
            self.tenants.add(name)
        return name


def _twice(name: bytes) -> BadRequestError:
    shown = name.decode()
    return BadRequestError(f"{shown}: comes more than once; send it once", shown, "invalid_value")


def _integer(name: bytes, value: bytes, low: int, high: int) -> int:
    if not _INTEGER.fullmatch(value) or not low <= int(value) <= high:
        shown = name.decode()
        raise BadRequestError(f"{shown}: must be a whole number from {low} to {high}", shown, "invalid_value")
    return int(value)


def _tenant_name(header: bytes) -> str:
    if not _NAME.fullmatch(header):
        raise BadRequestError(
            "x-kvbudget-tenant: use 1 to 64 letters, digits, '.', '_' or '-'", "x-kvbudget-tenant", "invalid_value"
        )
    return header.decode()


def _tenant_by(key: ApiKey, named: str | None) -> str:
    """Whose request it is, by the rights of its key."""
    if named is None or named == key.tenant:
        return key.tenant
    if not key.any_tenant:
        raise BadRequestError(
            f"x-kvbudget-tenant: this API key is of tenant {key.tenant!r} and may name no other",
            "x-kvbudget-tenant",
            "invalid_value",
        )
    return named
