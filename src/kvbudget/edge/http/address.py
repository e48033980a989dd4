"""Decides what a backend's address means: a host and port, TLS or not, or a Unix socket, and what its requests say."""

import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

from kvbudget.errors import BadValueError

_FIX = "write http://HOST:PORT, https://HOST:PORT or unix:/path/to.sock"
_LONGEST_SOCKET = 107  # bytes, of sun_path on Linux
_PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    """Where to connect, and the Host header and path prefix of every request there.

    `socket_path`: a Unix socket instead of `host` and `port`. `tls`: None for plain HTTP.
    """

    host: str
    port: int
    socket_path: str | None
    tls: ssl.SSLContext | None
    authority: bytes
    prefix: bytes


def address_of(url: str, tls: ssl.SSLContext | None = None) -> Address:
    """What is meant by an address such as `http://[::1]:8000/prefix` or `unix:/run/vllm.sock`.

    `tls`: what https is checked by; None: the system's authorities. Raises BadValueError.
    """
    what = f"backend address {url[:100]!r}"
    if not url.isascii() or not url.isprintable() or " " in url:
        raise BadValueError(f"{what}: only printable ASCII", fix=_FIX)
    if url.startswith("unix:"):
        path = url.removeprefix("unix:").removeprefix("//")
        if not path.startswith("/") or len(path) > _LONGEST_SOCKET:
            raise BadValueError(f"{what}: no absolute path of at most {_LONGEST_SOCKET} bytes", fix=_FIX)
        return Address("localhost", 0, path, None, b"localhost", b"")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise BadValueError(f"{what}: {error}", fix=_FIX) from None
    if parts.scheme not in _PORTS or not host or parts.query or parts.fragment or "@" in parts.netloc:
        raise BadValueError(f"{what} cannot be used", fix=f"{_FIX}, with a path if the engine has one")
    port = _PORTS[parts.scheme] if port is None else port
    shown = f"[{host}]" if ":" in host else host
    context = None
    if parts.scheme == "https":
        context = ssl.create_default_context() if tls is None else tls
    return Address(host, port, None, context, f"{shown}:{port}".encode(), parts.path.rstrip("/").encode())


def host_port(host: str, port: int) -> str:
    """`HOST:PORT`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
