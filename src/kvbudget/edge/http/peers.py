"""Decides who is at the other end of a connection: by its socket, or by the PROXY header of a balancer that is trusted.

A balancer that passes TCP on hides its client's address; by the PROXY protocol (versions 1 and 2, as HAProxy publishes
it in doc/proxy-protocol.txt) it says it before the first byte. Whoever may say it, is asked: from an address in the
list a connection without that header is closed, and from any other one the header is a malformed request. So no client
can name an address, and no header is taken for a request.
"""

import asyncio
import ipaddress
import select
import socket
from collections.abc import Sequence
from typing import Final, NamedTuple

from kvbudget.edge.http.address import host_port
from kvbudget.errors import BadValueError

UNIX: Final = "unix"
"""Stands in a list of addresses for the clients of a Unix socket."""
_FIX: Final = "give addresses, networks (10.0.0.0/8) or `unix`, with commas between"
# Version 1 in text: at most 107 bytes with its CRLF. Version 2: sixteen bytes, and as many as they announce; addresses
# and what else is usual (names, TLS) take a few hundred.
_LONGEST_LINE: Final = 107
_LONGEST_REST: Final = 4096
_BINARY: Final = b"\r\n\r\n\0\r\nQUIT\n"
_BINARY_BYTES: Final = 16
_LOCAL, _PROXY = 0x20, 0x21  # version 2, and the command
_TCP4, _TCP6, _UNIX_STREAM = 0x11, 0x21, 0x31
_TCP_CLOSE_WAIT, _TCP_CLOSE = 8, 7  # first byte of Linux' struct tcp_info
_ADDRESS_BYTES: Final = {_TCP4: 4, _TCP6: 16}


class ProxyHeaderError(ValueError):
    """What came is no PROXY header; the connection is closed without an answer."""


class ProxyHeader(NamedTuple):
    """A whole header: the client as `ip:port`, None where the balancer speaks for itself; and how long it was."""

    peer: str | None
    size_bytes: int


class Trusted:
    """Addresses from which connections begin with a PROXY header."""

    __slots__ = ("_networks", "_of_unix")

    def __init__(self, listed: Sequence[str]) -> None:
        """Raises BadValueError for what is no address or network."""
        self._of_unix = UNIX in listed  # not `_unix`: compiled it would be `__unix`, a macro of the C compiler
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for text in listed:
            if text != UNIX:
                try:
                    self._networks.append(ipaddress.ip_network(text))
                except ValueError as error:
                    raise BadValueError(f"--proxy-protocol: {str(error)[:120]}", fix=_FIX) from None

    def includes(self, peername: object) -> bool:
        """Whether a connection from there, by its socket's word, begins with the header."""
        address = _address_of(peername)
        if address is None:
            return self._of_unix
        try:
            there = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(there, ipaddress.IPv6Address) and there.ipv4_mapped is not None:
            there = there.ipv4_mapped  # of a socket that listens for both
        return any(there in network for network in self._networks)


def peer_of(peername: object) -> str:
    """`ip:port` of a socket's other side; `unix` for a Unix socket, whatever name the client has bound its own to."""
    address = _address_of(peername)
    if address is None or not isinstance(peername, tuple):
        return UNIX
    return host_port(address, peername[1])


def has_left(transport: asyncio.Transport) -> bool:
    """Whether the other side has closed. With reading paused no end of file is delivered; the kernel is asked."""
    there = transport.get_extra_info("socket")
    if there.family == socket.AF_UNIX:
        ended = select.poll()
        ended.register(there.fileno(), select.POLLRDHUP)
        return bool(ended.poll(0))
    info = there.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    return info[0] in (_TCP_CLOSE_WAIT, _TCP_CLOSE)


def read_proxy_header(data: bytes) -> ProxyHeader | None:
    """The header that `data` begins with; None while bytes of it are missing. Raises ProxyHeaderError."""
    if data.startswith(_BINARY) or (len(data) < len(_BINARY) and _BINARY.startswith(data)):
        return _binary(data) if len(data) >= _BINARY_BYTES else None
    if data.startswith(b"PROXY ") or b"PROXY ".startswith(data):
        return _line(data)
    raise ProxyHeaderError("no PROXY header")


def _address_of(peername: object) -> str | None:
    """None: none that has one."""
    if isinstance(peername, tuple) and len(peername) >= 2 and isinstance(peername[0], str):
        return peername[0]
    return None


def _line(data: bytes) -> ProxyHeader | None:
    """`PROXY TCP4 1.2.3.4 5.6.7.8 1234 80` and CRLF."""
    stop = data.find(b"\r\n", 0, _LONGEST_LINE)
    if stop < 0:
        if len(data) >= _LONGEST_LINE or b"\n" in data:
            raise ProxyHeaderError("a PROXY line without its end")
        return None
    words = data[:stop].split(b" ")
    if words[1] == b"UNKNOWN":
        return ProxyHeader(None, stop + 2)
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise ProxyHeaderError("a malformed PROXY line")
    version = 4 if words[1] == b"TCP4" else 6
    source = _parsed(words[2], version)
    _parsed(words[3], version)
    ports = [_port(words[4]), _port(words[5])]
    return ProxyHeader(host_port(source, ports[0]), stop + 2)


def _parsed(word: bytes, version: int) -> str:
    try:
        address = ipaddress.ip_address(word.decode("ascii"))
    except ValueError:  # UnicodeDecodeError is one
        raise ProxyHeaderError("a PROXY line with a malformed address") from None
    if address.version != version or b"%" in word:
        raise ProxyHeaderError("a PROXY line with an address of another kind")
    return str(address)


def _port(word: bytes) -> int:
    if not word.isdigit() or len(word) > 5 or (word[:1] == b"0" and word != b"0") or int(word) > 0xFFFF:
        raise ProxyHeaderError("a PROXY line with a malformed port")
    return int(word)


def _binary(data: bytes) -> ProxyHeader | None:
    """Signature, version and command, family, length of the rest; then both addresses, both ports, and more."""
    command, family = data[12], data[13]
    rest = int.from_bytes(data[14:16], "big")
    if command not in (_LOCAL, _PROXY) or rest > _LONGEST_REST:
        raise ProxyHeaderError("a PROXY header of an unknown version or command, or too long")
    end = _BINARY_BYTES + rest
    if len(data) < end:
        return None
    if command == _LOCAL or family == 0:
        return ProxyHeader(None, end)
    if family == _UNIX_STREAM:
        return ProxyHeader(UNIX, end)
    size = _ADDRESS_BYTES.get(family)
    if size is None or rest < 2 * size + 4:
        raise ProxyHeaderError("a PROXY header of an unknown family, or too short for it")
    address = ipaddress.ip_address(data[_BINARY_BYTES : _BINARY_BYTES + size])
    port = int.from_bytes(data[_BINARY_BYTES + 2 * size : _BINARY_BYTES + 2 * size + 2], "big")
    return ProxyHeader(host_port(str(address), port), end)
