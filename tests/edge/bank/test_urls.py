"""What an address of a ledger means, and that no error shows its password."""

import sys
from pathlib import Path

import pytest

from kvbudget.edge.bank.memory import MemoryStore
from kvbudget.edge.bank.urls import address_of, shown_of, store_from_url
from kvbudget.errors import BadValueError, UnsupportedError


@pytest.mark.parametrize(
    ("url", "kind", "hosts", "database"),
    [
        ("redis://h", "one", (("h", 6379),), 0),
        ("redis://h/", "one", (("h", 6379),), 0),
        ("redis://h:1/2", "one", (("h", 1),), 2),
        ("valkey://10.0.0.1:6380/15", "one", (("10.0.0.1", 6380),), 15),
        ("redis://[::1]:1/2", "one", (("::1", 1),), 2),
        ("redis://[::1]", "one", (("::1", 6379),), 0),
        ("redis://user:p%40ss@h:1", "one", (("h", 1),), 0),
        ("redis+sentinel://a,b:1,[::2]:3/main/4", "sentinel", (("a", 26379), ("b", 1), ("::2", 3)), 4),
        ("valkey+sentinel://a/main", "sentinel", (("a", 26379),), 0),
        ("redis+cluster://a:1,b", "cluster", (("a", 1), ("b", 6379)), 0),
        ("valkey+cluster://a/0", "cluster", (("a", 6379),), 0),
        ("unix:///run/r.sock?db=2", "one", (), 2),
        ("redis+unix:///run/r.sock", "one", (), 0),
    ],
)
def test_every_form_is_understood(url: str, kind: str, hosts: tuple[tuple[str, int], ...], database: int) -> None:
    address = address_of(url, {})
    assert (address.kind, address.hosts, address.database, address.tls) == (kind, hosts, database, None)
    assert address.name == "default"


def test_a_user_and_a_password_come_from_the_address_the_environment_or_a_file() -> None:
    login = address_of("redis://me:p%40s%3As@h", {"KVBUDGET_LEDGER_PASSWORD": "other"}).login
    assert (login.user, login.password) == ("me", "p@s:s")
    login = address_of("redis://me@h", {"KVBUDGET_LEDGER_PASSWORD": "other"}).login
    assert (login.user, login.password) == ("me", "other")
    login = address_of("redis://h?password_file=%2Frun%2Fsecret", {}).login
    assert (login.password, login.password_file) == ("", "/run/secret")


def test_sentinels_have_a_login_of_their_own() -> None:
    url = "redis+sentinel://me:pw@a/main?sentinel_user=watcher&sentinel_password_file=f"
    address = address_of(url, {"KVBUDGET_LEDGER_SENTINEL_PASSWORD": "their"})
    assert (address.login.user, address.login.password) == ("me", "pw")
    assert (address.sentinel_login.user, address.sentinel_login.password) == ("watcher", "their")
    assert address.sentinel_login.password_file == "f"
    assert address.primary == "main"


@pytest.mark.parametrize("url", ["rediss://h", "valkeys://h", "rediss+sentinel://a/m", "valkeys+cluster://a"])
def test_an_s_means_tls(url: str) -> None:
    address = address_of(url + "?tls_name=ledger", {})
    assert address.tls is not None
    assert address.tls.check_hostname
    assert address.tls_name == "ledger"


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("http://h", "no such kind"),
        ("redis:h", "no such kind"),
        ("h:6379", "no such kind"),
        ("", "no such kind"),
        ("redis://", "no HOST:PORT"),
        ("redis://h:0", "no HOST:PORT"),
        ("redis://127.0.0.1:1:2/0", "no HOST:PORT"),
        ("redis://[::1/0", "no HOST:PORT"),
        ("redis://h:65536", "no HOST:PORT"),
        ("redis://h:x", "no HOST:PORT"),
        ("redis://h/x", "database 'x' is no number"),
        ("redis://h/-1", "is no number"),
        ("redis://a,b", r"several servers.*\+sentinel or \+cluster"),
        ("redis+sentinel://a", "which primary"),
        ("redis+cluster://a/1", "no database but 0"),
        ("redis+cluster://a,", "no HOST:PORT"),
        ("unix://run/r.sock", "no absolute path"),
        ("unix:///" + "x" * 108, "no absolute path"),
        ("redis://h?nmae=x", "no option 'nmae'"),
        ("redis://h?name=a/b", "name='a/b'"),
        ("redis://h?name=", "name=''"),
        ("redis://h/0 ", "printable ASCII"),
        ("redis://h\n", "printable ASCII"),
        ("redis://hä", "printable ASCII"),
        ("redis://h#x", "printable ASCII"),
        ("rediss://h?ca=/no/such.pem", "ca, cert or key"),
    ],
)
def test_what_cannot_be_meant_is_told(url: str, match: str) -> None:
    with pytest.raises(BadValueError, match=match):
        address_of(url, {})


@pytest.mark.parametrize(
    "url",
    [
        "redis://:s3cret@h/x",
        "redis://me:s3cret@a,b",
        "redis://me:s3cret@h:x",
        "redis://me:s3@cret@h?nmae=1",
        "http://me:s3cret@h",
        "me:s3cret@h",
        "redis://me:s3cret@h ",
        "redis+sentinel://me:s3cret@a",
        "redis://me:s3cret/@h",
        "redis://me:x/s3cret@h",
        "redis://me:x?s3cret@h",
        "redis://me:x?s3cret/@h:1/2",
        "redis://me:s3cret#@h",
    ],
)
def test_no_error_shows_a_password(url: str) -> None:
    with pytest.raises(BadValueError) as told:
        address_of(url, {})
    assert "cret" not in str(told.value)


def test_what_people_see_is_without_user_password_and_options() -> None:
    assert shown_of("redis://me:pw@h:1/2?password_file=x&name=y") == "redis://h:1/2"
    address = address_of("redis://me:s3cret@h:1/2", {})
    assert "s3cret" not in repr(address)


def test_memory_is_this_process_alone() -> None:
    assert isinstance(store_from_url("memory", lease_ns=10**9), MemoryStore)


def test_without_the_extra_the_address_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith("kvbudget.edge.bank.") and "store" in name:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "hiredis", None)
    for name in ("redis_store", "client", "link", "places", "refusals"):
        monkeypatch.delitem(sys.modules, f"kvbudget.edge.bank.{name}", raising=False)
    with pytest.raises(UnsupportedError, match=r"hiredis is not installed; pip install 'hiredis"):
        store_from_url("redis://h", lease_ns=10**9)


def test_a_certificate_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.pem").write_text("no certificate")
    with pytest.raises(BadValueError, match="give PEM files"):
        address_of(f"rediss://h?ca={tmp_path}/x.pem", {})
