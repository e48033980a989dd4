"""What the address of a source means."""

import pytest

from kvbudget.edge.discovery.sources import (
    DnsName,
    KubernetesService,
    Sought,
    Source,
    TargetList,
    is_source,
    source_of,
)
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.errors import BadValueError


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("dns://vllm.llm.svc.cluster.local:8000", DnsName("vllm.llm.svc.cluster.local", 8000)),
        ("dns://engines:80/", DnsName("engines", 80)),
        ("k8s://llm/vllm", KubernetesService("llm", "vllm", "")),
        ("k8s://llm/vllm:8000", KubernetesService("llm", "vllm", "8000")),
        ("k8s://llm/vllm:http", KubernetesService("llm", "vllm", "http")),
        ("http-sd+http://sd:9000/targets?pool=chat", TargetList("http://sd:9000/targets?pool=chat")),
        ("http-sd+https://sd/", TargetList("https://sd/")),
    ],
)
def test_a_source_is_read(url: str, meant: Source) -> None:
    assert is_source(url)
    assert source_of(url) == meant


@pytest.mark.parametrize(
    "url",
    [
        "dns://engines", "dns://:8000", "dns://engines:0", "dns://engines:70000", "dns://a b:1", "dns://[::1]:8000",
        "dns://" + "a" * 254 + ":1", "k8s://vllm", "k8s://llm/", "k8s:///vllm", "k8s://llm/vllm:", "k8s://llm/vllm:0",
        "k8s://LLM/vllm", "k8s://llm/a/b", "k8s://llm/vllm:Http", "http-sd+http://", "http-sd+http://u:p@sd/",
        "http-sd+http://sd:x/", "http-sd+http://sd/#a", "dns://" + "a" * 1100,
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_forms_that_can(url: str) -> None:
    with pytest.raises(BadValueError, match="--backend") as refused:
        source_of(url)
    assert "k8s://NAMESPACE/SERVICE" in str(refused.value.fix)


@pytest.mark.parametrize("url", ["http://a:1", "https://a:1", "unix:/a", "a:1"])
def test_an_engine_is_no_source(url: str) -> None:
    assert not is_source(url)


def test_who_is_found_has_what_the_source_has_and_its_own_name() -> None:
    template = InstanceSettings("dns://engines:8000", weight=2.0, models=("m",))
    found = Sought(DnsName("engines", 8000), template).found("http://10.0.0.7:8000")
    assert (found.url, found.shown_name, found.weight, found.models) == (
        "http://10.0.0.7:8000", "10.0.0.7:8000", 2.0, ("m",),
    )  # fmt: skip
    named = Sought(DnsName("engines", 8000), InstanceSettings("dns://engines:8000", "chat"))
    assert named.found("http://[::1]:8000").shown_name == "chat-[::1]:8000"
    assert named.shown_name == "dns://engines:8000"
