"""Engines by the EndpointSlices of a service."""

from typing import Any

import pytest

from kvbudget.edge.discovery.endpoints import Slices
from kvbudget.edge.discovery.roster import Standing
from kvbudget.errors import BadConfigError


def one_slice(name: str, *endpoints: dict[str, Any], family: str = "IPv4", ports: Any = None) -> dict[str, Any]:
    ports = [{"name": "http", "port": 8000, "protocol": "TCP"}] if ports is None else ports
    return {"metadata": {"name": name}, "addressType": family, "endpoints": list(endpoints), "ports": ports}


def endpoint(address: str, **conditions: bool | None) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions, "targetRef": {"kind": "Pod", "name": "vllm-0"}}


def found(slices: Slices, port: str = "") -> dict[str, str]:
    return {one.url: one.standing.value for one in slices.found(port)}


def made(*listed: dict[str, Any]) -> Slices:
    slices = Slices()
    slices.replace(list(listed))
    return slices


def test_each_endpoint_of_each_slice_is_an_engine_and_null_means_ready() -> None:
    bare = {"addresses": ["10.0.0.9", "10.0.0.10"]}
    slices = made(
        one_slice("a", endpoint("10.0.0.7", ready=True), endpoint("10.0.0.8", ready=None)), one_slice("b", bare)
    )
    assert found(slices) == dict.fromkeys([f"http://10.0.0.{n}:8000" for n in (7, 8, 9)], "ready")


def test_conditions_say_who_may_come_and_who_is_going() -> None:
    slices = made(
        one_slice(
            "a",
            endpoint("10.0.0.1", ready=True, serving=True, terminating=False),
            endpoint("10.0.0.2", ready=False, serving=False, terminating=False),
            endpoint("10.0.0.3", ready=False, serving=True, terminating=True),
            endpoint("10.0.0.4", ready=True, serving=True, terminating=True),  # publishNotReadyAddresses
        )
    )
    assert list(found(slices).values()) == ["ready", "unready", "going", "going"]
    assert Standing("going") is Standing.GOING


def test_changes_are_taken_in_one_by_one() -> None:
    slices = made(one_slice("a", endpoint("10.0.0.1")))
    slices.changed("ADDED", one_slice("b", endpoint("10.0.0.2")))
    assert len(found(slices)) == 2
    slices.changed("MODIFIED", one_slice("a", endpoint("10.0.0.3")))
    assert list(found(slices)) == ["http://10.0.0.3:8000", "http://10.0.0.2:8000"]
    slices.changed("DELETED", one_slice("a"))
    slices.changed("DELETED", one_slice("a"))
    assert list(found(slices)) == ["http://10.0.0.2:8000"]


def test_a_pod_of_a_dual_stack_service_is_one_engine_also_when_its_ipv4_slice_goes_first() -> None:
    six = one_slice("six", endpoint("fd00::7"), family="IPv6")
    slices = made(six)
    assert found(slices) == {"http://[fd00::7]:8000": "ready"}
    slices.changed("ADDED", one_slice("four", endpoint("10.0.0.7")))
    assert list(found(slices)) == ["http://10.0.0.7:8000"]
    slices.changed("DELETED", one_slice("four"))
    assert found(slices) == {}


def test_names_of_hosts_are_no_engines() -> None:
    assert found(made(one_slice("a", endpoint("engine.example.org"), family="FQDN"))) == {}


def test_a_port_is_a_number_or_a_name_or_the_only_one() -> None:
    two = [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9000}]
    slices = made(one_slice("a", endpoint("10.0.0.7"), ports=two))
    assert list(found(slices, "metrics")) == ["http://10.0.0.7:9000"]
    assert list(found(slices, "8080")) == ["http://10.0.0.7:8080"]
    with pytest.raises(BadConfigError, match=r"has 2 ports \(http, metrics\)"):
        found(slices)
    with pytest.raises(BadConfigError, match="has no port 'grpc'"):
        found(slices, "grpc")
    assert list(found(made(one_slice("a", endpoint("10.0.0.7"), ports=[{"port": 80}])))) == ["http://10.0.0.7:80"]
    with pytest.raises(BadConfigError, match=r"has 0 ports \(none with a name\)"):
        found(made(one_slice("a", endpoint("10.0.0.7"), ports=[])))


def test_a_slice_without_endpoints_needs_no_port() -> None:
    empty: dict[str, Any] = {"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": None, "ports": None}
    assert found(made(empty)) == {}


@pytest.mark.parametrize("one", [None, {}, {"metadata": {}}, {"metadata": {"name": "a"}, "endpoints": [7]}])
def test_what_is_no_slice_is_refused(one: Any) -> None:
    slices = Slices()
    with pytest.raises(BadConfigError):
        slices.replace([one])
    with pytest.raises(BadConfigError):
        slices.changed("ADDED", one)
