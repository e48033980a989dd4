"""Decides what an address of a shared ledger means: which servers, how one gets in, and the name of the ledger.

    redis://[USER[:PASSWORD]@]HOST[:6379][/DB]                one server; valkey:// is the same
    rediss://... or valkeys://...                             with TLS
    redis+sentinel://HOST[:26379][,HOST...]/PRIMARY[/DB]      the primary that Sentinels name
    redis+cluster://HOST[:6379][,HOST...]                     a cluster: some of its nodes
    unix:///PATH/OF.sock                                      one server on a Unix socket
    memory                                                    this process alone

`?name=NAME`: of the ledger, where several share a server. `db=N` (unix).
`password_file=FILE`, read at every connection.
TLS: `ca=FILE`, `cert=FILE` and `key=FILE` of our own, `tls_name=NAME` that the server's certificate must be of.
Sentinels have a user and password of their own: `sentinel_user=NAME`, `sentinel_password_file=FILE`.

No error shows a password.
"""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote

from kvbudget.edge.bank.memory import MemoryStore
from kvbudget.edge.bank.store import BankStore, Woken, not_heeded
from kvbudget.errors import BadValueError, UnsupportedError, printable
from kvbudget.extras import install
from kvbudget.units import is_digits

PASSWORD: Final = "KVBUDGET_LEDGER_PASSWORD"  # noqa: S105 the name of a variable of the environment
SENTINEL_PASSWORD: Final = "KVBUDGET_LEDGER_SENTINEL_PASSWORD"  # noqa: S105
DEFAULT_NAME: Final = "default"
_LONGEST_TIMEOUT_S: Final = 1.0

Kind = Literal["one", "sentinel", "cluster"]
_KINDS: Final[dict[str, Kind]] = {"": "one", "+sentinel": "sentinel", "+cluster": "cluster"}
_SCHEMES: Final = {
    f"{base}{'s' if tls else ''}{suffix}": (kind, tls)
    for base in ("redis", "valkey")
    for tls in (False, True)
    for suffix, kind in _KINDS.items()
}
_SIGNS: Final = str.maketrans("._-", "aaa")
_OPTIONS: Final = {
    "name", "db", "password_file", "ca", "cert", "key", "tls_name", "sentinel_user", "sentinel_password_file",
}  # fmt: skip
_FIX: Final = (
    "write redis://HOST:PORT/DB, rediss:// for TLS, redis+sentinel://HOST,HOST/PRIMARY, redis+cluster://HOST,HOST or"
    " unix:///PATH; valkey:// is the same"
)


@dataclass(frozen=True, slots=True)
class Login:
    """As whom one comes. `password_file` is read at every connection, so that a password may be changed."""

    user: str = ""
    password: str = ""
    password_file: str = ""

    def __repr__(self) -> str:
        return f"Login(user={self.user!r})"


@dataclass(frozen=True, slots=True)
class LedgerAddress:
    """What an address says. `hosts`: (host, port). `socket_path`: instead of them."""

    kind: Kind
    hosts: tuple[tuple[str, int], ...]
    shown: str
    name: str = DEFAULT_NAME
    socket_path: str = ""
    database: int = 0
    primary: str = ""
    login: Login = Login()
    sentinel_login: Login = Login()
    tls: ssl.SSLContext | None = None
    tls_name: str = ""


def store_from_url(
    url: str, *, lease_ns: int, woken: Woken = not_heeded, environment: Mapping[str, str] | None = None
) -> BankStore:
    """The store that an address names; nothing is connected yet.

    `lease_ns`: of the branches that will call; an answer is waited for as long as a call may be repeated within it.
    `environment`: where `KVBUDGET_LEDGER_PASSWORD` may stand. Raises BadValueError, and UnsupportedError when the extra
    that speaks to servers is not installed.
    """
    if url == "memory":
        return MemoryStore(woken)
    address = address_of(url, environment or {})
    try:
        from kvbudget.edge.bank.redis_store import RedisStore
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"--ledger {address.shown}: {error.name} is not installed",
            fix=install("redis"),
        ) from None
    return RedisStore(address, timeout_s=min(lease_ns / 8e9, _LONGEST_TIMEOUT_S), woken=woken)


def address_of(url: str, environment: Mapping[str, str]) -> LedgerAddress:
    """Reads an address. Raises BadValueError, without the password in it."""
    shown = shown_of(url)
    what = f"--ledger {shown}"
    if not url.isascii() or not url.isprintable() or " " in url or "#" in url:
        raise BadValueError(f"{what}: only printable ASCII without spaces and #", fix="write other signs as %XX")
    scheme, separator, rest = url.partition("://")
    if "@" in rest.partition("/")[2] or "@" in rest.partition("?")[2]:
        fix = "in a user, password or option write @ / ? # as %40 %2F %3F %23"
        raise BadValueError(f"{what}: an @ behind a / or ?", fix=fix)
    rest, _, query = rest.partition("?")
    options = _options(what, query)
    login = Login(password=environment.get(PASSWORD, ""), password_file=options.get("password_file", ""))
    if scheme in ("unix", "redis+unix", "valkey+unix") and separator:
        if not rest.startswith("/") or len(rest) > 107:
            raise BadValueError(f"{what}: no absolute path of at most 107 bytes", fix=_FIX)
        return LedgerAddress(
            "one", (), shown, _name(what, options), unquote(rest), _database(what, options.get("db", "")), login=login
        )
    if scheme not in _SCHEMES or not separator:
        raise BadValueError(f"{what}: no such kind of address", fix=_FIX)
    kind, with_tls = _SCHEMES[scheme]
    place, _, path = rest.partition("/")
    userinfo, _, hosts = place.rpartition("@")
    user, _, password = userinfo.partition(":")
    login = Login(unquote(user), unquote(password) or login.password, login.password_file)
    primary = ""
    if kind == "sentinel":
        primary, _, path = path.partition("/")
        if not primary:
            raise BadValueError(f"{what}: which primary?", fix="write redis+sentinel://HOST,HOST/PRIMARY")
    if kind == "cluster" and path.strip("/") not in ("", "0"):
        raise BadValueError(f"{what}: a cluster has no database but 0", fix="leave it out; ?name= parts ledgers")
    found = tuple(_host(what, host, 26379 if kind == "sentinel" else 6379) for host in hosts.split(","))
    if kind == "one" and len(found) > 1:
        raise BadValueError(f"{what}: several servers", fix="say +sentinel or +cluster: " + _FIX)
    return LedgerAddress(
        kind, found, shown, _name(what, options),
        database=_database(what, path.strip("/") or options.get("db", "")),
        primary=unquote(primary),
        login=login,
        sentinel_login=Login(
            options.get("sentinel_user", ""), environment.get(SENTINEL_PASSWORD, ""),
            options.get("sentinel_password_file", ""),
        ),
        tls=_tls(what, options) if with_tls else None,
        tls_name=options.get("tls_name", ""),
    )  # fmt: skip


def shown_of(url: str) -> str:
    """The address as people may see it: without user, password and options."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return printable(url.rpartition("@")[2].partition("?")[0], 200)
    return printable(f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}", 200)  # a password may hold a ? as well


def _options(what: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise BadValueError(
                f"{what}: no option {printable(name, 40)!r}", fix=f"there are {', '.join(sorted(_OPTIONS))}"
            )
        options[name] = value
    return options


def _name(what: str, options: Mapping[str, str]) -> str:
    name = options.get("name", DEFAULT_NAME)
    if not name.translate(_SIGNS).isalnum() or len(name) > 100:
        raise BadValueError(f"{what}: ?name={printable(name, 40)!r}", fix="1 to 100 letters, digits, dots, - and _")
    return name


def _database(what: str, text: str) -> int:
    if text and not (is_digits(text) and len(text) < 6):
        raise BadValueError(f"{what}: database {printable(text, 40)!r} is no number", fix=_FIX)
    return int(text or "0")


def _host(what: str, text: str, port: int) -> tuple[str, int]:
    host, separator, given = text.rpartition(":")
    if not separator or given.endswith("]"):
        host, given = text, ""
    bracketed = host[:1] == "[" and host[-1:] == "]"
    host = host[1:-1] if bracketed else host
    is_host = 0 < len(host) <= 253 and not set(host) & set("[]") and (bracketed or ":" not in host)
    if not is_host or (given and not (is_digits(given) and 0 < int(given[:6]) < 65536)):
        raise BadValueError(f"{what}: {printable(text, 60)!r} is no HOST:PORT", fix=_FIX)
    return host, int(given or port)


def _tls(what: str, options: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=options.get("ca"))
        if "cert" in options:
            context.load_cert_chain(options["cert"], options.get("key"), password=_no_password)
    except (OSError, ValueError) as error:
        raise BadValueError(f"{what}: ca, cert or key: {printable(str(error), 200)}", fix="give PEM files") from None
    return context


def _no_password() -> str:
    raise ValueError("the key is locked by a password")
