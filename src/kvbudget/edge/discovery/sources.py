"""Decides what the address of a source means: a DNS name, a Kubernetes service, or a list of targets over HTTP."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.errors import BadValueError
from kvbudget.units import is_digits

SCHEMES: Final = ("dns://", "k8s://", "http-sd+http://", "http-sd+https://")
_FIX: Final = "write dns://NAME:PORT, k8s://NAMESPACE/SERVICE[:PORT] or http-sd+http://HOST:PORT/PATH"
_LONGEST: Final = 1024
_LABEL: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-")
_HOST: Final = _LABEL | frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ._")
_LONGEST_NAME: Final = 253  # of DNS, and of objects of Kubernetes
_LONGEST_LABEL: Final = 63


@dataclass(frozen=True, slots=True)
class DnsName:
    """Every address of `host` is an engine, at `port`."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class KubernetesService:
    """Every ready endpoint of a service is an engine. `port`: number on the pod, name as in the service; empty: the
    only one that it has."""

    namespace: str
    name: str
    port: str


@dataclass(frozen=True, slots=True)
class TargetList:
    """Every target of a list in the form of Prometheus' HTTP service discovery is an engine."""

    url: str


Source = DnsName | KubernetesService | TargetList


@dataclass(frozen=True, slots=True)
class KubernetesAccess:
    """How the API server is asked: `url`, the token's file (read for every request, as it is changed every hour) and
    the authorities of its certificate; None: without."""

    url: str
    token_path: str | None = None
    ca_path: str | None = None


@dataclass(frozen=True, slots=True)
class Sought:
    """A source, and what holds for each engine that it tells of: `template`, whose url is the source's."""

    source: Source
    template: InstanceSettings

    @property
    def shown_name(self) -> str:
        """Its name in metrics and logs: its address."""
        return self.template.url

    def found(self, url: str) -> InstanceSettings:
        """The settings of an engine at `url`. Its name is its host and port, behind the template's name if it has
        one: pods of a Prometheus have the same as `instance`."""
        from dataclasses import replace

        place = url.split("://", 1)[-1].rstrip("/")
        return replace(self.template, url=url, name=f"{self.template.name}-{place}" if self.template.name else place)


def is_source(url: str) -> bool:
    """Whether an address of --backend is that of a source."""
    return url.startswith(SCHEMES)


def source_of(url: str) -> Source:
    """Raises BadValueError for an address that cannot be."""
    what = f"--backend {url[:80]}"
    if len(url) > _LONGEST or not url.isascii() or not url.isprintable() or " " in url:
        raise BadValueError(f"{what}: an address is printable ASCII without blanks, at most {_LONGEST}", fix=_FIX)
    if url.startswith("k8s://"):
        return _service(url.removeprefix("k8s://"), what)
    if url.startswith("dns://"):
        return _name(url.removeprefix("dns://"), what)
    inner = url.removeprefix("http-sd+")
    try:
        parts = urlsplit(inner)
        _ = parts.port
    except ValueError as error:
        raise BadValueError(f"{what}: {error}", fix=_FIX) from None
    if not parts.hostname or "@" in parts.netloc or parts.fragment:
        raise BadValueError(f"{what}: not a plain address of a list", fix=_FIX)
    return TargetList(inner)


def _name(text: str, what: str) -> DnsName:
    host, _, port = text.rstrip("/").rpartition(":")
    if not 0 < len(host) <= _LONGEST_NAME or not _HOST.issuperset(host) or not _is_port(port):
        raise BadValueError(f"{what}: not a name and a port", fix=_FIX)
    return DnsName(host, int(port))


def _service(text: str, what: str) -> KubernetesService:
    namespace, _, rest = text.rstrip("/").partition("/")
    name, colon, port = rest.partition(":")
    lawful = all(0 < len(part) <= _LONGEST_LABEL and _LABEL.issuperset(part) for part in (namespace, name))
    named = 0 < len(port) <= _LONGEST_LABEL and _LABEL.issuperset(port)
    if not lawful or (colon and not (_is_port(port) if is_digits(port) else named)):
        raise BadValueError(f"{what}: not a namespace, a service and perhaps a port", fix=_FIX)
    return KubernetesService(namespace, name, port)


def _is_port(text: str) -> bool:
    return is_digits(text) and len(text) <= 5 and 0 < int(text) < 65536
