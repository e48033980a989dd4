"""Which engines `kvbudget serve` is told of, by flags and by [[backend]]."""

from pathlib import Path

import pytest

from kvbudget.cli.serving.backends import backend_url, divided, instances_of, kubernetes_access
from kvbudget.edge.budget.file import read_budget
from kvbudget.edge.discovery.sources import DnsName, KubernetesAccess, KubernetesService
from kvbudget.edge.instances.settings import InstanceSettings
from kvbudget.edge.service import ServiceSettings
from kvbudget.errors import BadConfigError, BadValueError, InputError

SCHEMA = 'schema = "kvbudget.budget/1"\n'


def from_file(tmp_path: Path, text: str) -> list[InstanceSettings]:
    path = tmp_path / "kvbudget.toml"
    path.write_text(SCHEMA + text)
    return instances_of([], read_budget(str(path)))


def test_a_table_says_what_holds_for_one_engine(tmp_path: Path) -> None:
    (one, two) = from_file(
        tmp_path,
        '[[backend]]\nurl = "a:1"\n'.replace("a:1", "http://a:1")
        + '[[backend]]\nurl = "http://[::1]:2/"\nname = "long"\nmodels = ["m"]\naliases = {chat = "m"}\nweight = 2\n'
        'tier = 1\nmax_context = "8k"\nborrow = 0.5\nfallback = ["big"]\nfallback_share = 0.25\ndrain = true\n',
    )
    assert one == InstanceSettings("http://a:1")
    assert (two.url, two.shown_name, two.max_context, two.drain) == ("http://[::1]:2", "long", 8192, True)
    options = two.options()
    assert (options.models, options.fallback) == (frozenset({"m", "chat"}), frozenset({"big"}))
    assert (options.weight, options.tier, options.borrow, options.fallback_share) == (2, 1, 0.5, 0.25)


def test_a_table_says_how_its_model_is_counted(tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    (one,) = from_file(
        tmp_path,
        f'[[backend]]\nurl = "http://a:1"\ntokenizer = "{tmp_path}"\nchat_template = "{template}"\n'
        "default_chat_template_kwargs = '{\"enable_thinking\": false}'\nimage_tokens = 9\n",
    )
    assert (one.tokenizer, one.chat_template, one.image_tokens) == (str(tmp_path), "{{ messages }}", 9)
    assert one.template_kwargs == {"enable_thinking": False}


@pytest.mark.parametrize(
    "told",
    [
        'chat_template = "x"',
        "default_chat_template_kwargs = '{}'",
        'tokenizer = "engine"\ndefault_chat_template_kwargs = "[]"',
        'tokenizer = "engine"\nchat_template = "/none"',
    ],
)
def test_a_template_that_cannot_be_used_is_refused(tmp_path: Path, told: str) -> None:
    with pytest.raises(InputError):
        from_file(tmp_path, f'[[backend]]\nurl = "http://a:1"\n{told}\n')


def test_flags_stand_before_the_file(tmp_path: Path) -> None:
    path = tmp_path / "kvbudget.toml"
    path.write_text(SCHEMA + '[[backend]]\nurl = "http://a:1"\n')
    told = instances_of(["http://b:1", "http://c:1"], read_budget(str(path)))
    assert [one.url for one in told] == ["http://b:1", "http://c:1"]


def test_what_is_not_said_of_one_holds_as_for_all() -> None:
    settings = ServiceSettings(
        "",
        (InstanceSettings("http://a:1"), InstanceSettings("http://b:1", pool_blocks=5)),
        pool_blocks=9,
        block_size=32,
    )
    assert [(one.pool_blocks, one.block_size) for one in settings.each()] == [(9, 32), (5, 32)]
    (alone,) = ServiceSettings("http://a:1", pool_blocks=7).each()
    assert (alone.url, alone.pool_blocks) == ("http://a:1", 7)


@pytest.mark.parametrize(("text", "told"), [
    ('[backend]\nurl = "http://a:1"', "[[backend]]"),
    ('[[backend]]\nname = "a"', "backend[0].url is missing"),
    ('[[backend]]\nurl = "http://a:1"\nwait = 1', "is not known there"),
    ('[[backend]]\nurl = "http://a:1"\nborrow = 2', "a number from 0 to 1"),
    ('[[backend]]\nurl = "http://a:1"\naliases = {a = 1}', "backend[0].aliases.a is 1"),
    ('[gate]\nbackend = "http://b:1"\n[[backend]]\nurl = "http://a:1"', "cannot stand beside gate.backend"),
    ('[[backend]]\nurl = "http://a:1"\nname = "a b"', "cannot be a label"),
    ('[[backend]]\nurl = "http://a:1"\n[[backend]]\nurl = "http://a:1/"', "two backends have the name a:1"),
    ('[[backend]]\nurl = "http://a:1"\nname = "x"\n[[backend]]\nurl = "http://b:1"\nname = "x"', "have the name x"),
    ('[[backend]]\nurl = "http://a:1"\nname = "x"\n[[backend]]\nurl = "http://a:1"\nname = "y"', "have the url"),
])  # fmt: skip
def test_what_cannot_be_is_refused_with_its_place(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises((BadConfigError, BadValueError)) as error:
        from_file(tmp_path, text)
    assert told in f"{error.value} {error.value.fix}"


@pytest.mark.parametrize("url", ["a:1", "ftp://a:1", "http://a:99999", "http://u:p@a:1", "http://a:1/v1"])
def test_an_address_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        backend_url(url)


def test_sources_are_told_from_engines_in_flags_and_file_alike(tmp_path: Path) -> None:
    named, sought = divided(instances_of(["http://a:1", "dns://engines:8000", "k8s://llm/vllm:http"], None))
    assert [one.url for one in named] == ["http://a:1"]
    assert [one.source for one in sought] == [DnsName("engines", 8000), KubernetesService("llm", "vllm", "http")]
    told = '[[backend]]\nurl = "dns://engines:8000"\nname = "chat"\nweight = 2\nmodels = ["m"]\n'
    (_, (only,)) = divided(from_file(tmp_path, told))
    assert (only.template.name, only.template.weight, only.template.models) == ("chat", 2.0, ("m",))
    assert ServiceSettings("", sources=(only,)).each() == ()


@pytest.mark.parametrize("url", ["dns://engines", "k8s://vllm", "http-sd+http://"])
def test_a_source_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(InputError):
        instances_of([url], None)


def test_a_pod_asks_its_own_api_server_and_who_is_none_may_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "KVBUDGET_KUBERNETES_API"):
        monkeypatch.delenv(name, raising=False)
    assert kubernetes_access() is None
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    assert kubernetes_access() == KubernetesAccess("https://10.96.0.1:443", f"{account}/token", f"{account}/ca.crt")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    found = kubernetes_access()
    assert found is not None
    assert found.url == "https://[fd00::1]:6443"
    monkeypatch.setenv("KVBUDGET_KUBERNETES_API", "http://127.0.0.1:8001/")
    assert kubernetes_access() == KubernetesAccess("http://127.0.0.1:8001")
