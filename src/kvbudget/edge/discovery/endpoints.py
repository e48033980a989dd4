"""Decides from the EndpointSlices of a service which engines there are. No I/O.

Read at Kubernetes 1.37, discovery.k8s.io/v1: a service has several slices, each of one address family; an endpoint is
one pod, all of whose addresses lead to it. `ready` null means true; `terminating` says that the pod was told to stop,
whatever `ready` says (it stays true with publishNotReadyAddresses).
"""

from collections.abc import Mapping
from typing import Any, Final

from kvbudget.edge.discovery.roster import Found, Standing
from kvbudget.errors import BadConfigError
from kvbudget.units import is_digits

SERVICE_LABEL: Final = "kubernetes.io/service-name"

Slice = Mapping[str, Any]


class Slices:
    """Those of one service, as a list and the changes since have them."""

    def __init__(self) -> None:
        self._by_name: dict[str, Slice] = {}
        self._has_ipv4 = False

    def replace(self, listed: list[Any]) -> None:
        """A list tells all of them. Raises BadConfigError for what is no EndpointSlice."""
        self._by_name = {_name(one): one for one in listed}

    def changed(self, kind: str, changed: object) -> None:
        """ADDED, MODIFIED or DELETED. Raises BadConfigError."""
        name = _name(changed)
        if kind == "DELETED":
            self._by_name.pop(name, None)
        else:
            assert isinstance(changed, Mapping)  # noqa: S101 - it has a name
            self._by_name[name] = changed

    def found(self, port: str) -> list[Found]:
        """The engines, of one family: a pod of a dual-stack service is in slices of both, and would be taken for two.
        IPv6 counts where IPv4 has never been seen. Raises BadConfigError where it is not clear which port is meant."""
        families = [one.get("addressType") for one in self._by_name.values() if one.get("endpoints")]
        self._has_ipv4 = self._has_ipv4 or "IPv4" in families
        family = "IPv4" if self._has_ipv4 else "IPv6"
        slices = [one for one in self._by_name.values() if one.get("addressType") == family]
        return [found for one in slices for found in _found(one, port)]


def _found(one: Slice, port: str) -> list[Found]:
    endpoints = [endpoint for endpoint in one.get("endpoints") or () if endpoint.get("addresses")]
    if not endpoints:
        return []
    number = _port(one, port)
    engines = []
    for endpoint in endpoints:
        address = endpoint["addresses"][0]
        host = f"[{address}]" if ":" in address else address
        engines.append(Found(f"http://{host}:{number}", _standing(endpoint.get("conditions") or {})))
    return engines


def _standing(conditions: Mapping[str, Any]) -> Standing:
    if conditions.get("terminating"):
        return Standing.GOING
    return Standing.UNREADY if conditions.get("ready") is False else Standing.READY


def _port(one: Slice, port: str) -> int:
    if is_digits(port):
        return int(port)
    ports = {entry.get("name") or "": entry.get("port") for entry in one.get("ports") or ()}
    chosen = ports.get(port) if port else (next(iter(ports.values())) if len(ports) == 1 else None)
    if not isinstance(chosen, int):
        known = ", ".join(sorted(name for name in ports if name)) or "none with a name"
        why = f"has no port {port!r}" if port else f"has {len(ports)} ports"
        raise BadConfigError(f"the service {why} ({known})", fix="write k8s://NAMESPACE/SERVICE:PORT, a number or name")
    return chosen


def _name(one: object) -> str:
    metadata = one.get("metadata") if isinstance(one, Mapping) else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    endpoints = one.get("endpoints") if isinstance(one, Mapping) else None
    if not isinstance(name, str) or not all(isinstance(entry, Mapping) for entry in endpoints or ()):
        raise BadConfigError("an object without a name, or no EndpointSlice", fix="ask an API server for a namespace")
    return name
