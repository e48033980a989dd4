"""Who a connection is of: by its socket's name, whatever that is, or by a PROXY header where one must come."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.limits import ServerLimits
from kvbudget.edge.http.peers import ProxyHeader, ProxyHeaderError, Trusted, peer_of, read_proxy_header
from kvbudget.edge.http.server import HttpServer, start_server
from kvbudget.errors import BadValueError

GET = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
V2 = b"\r\n\r\n\0\r\nQUIT\n"
V4 = b"\x0a\x00\x00\x07\x7f\x00\x00\x01\x01\xbb\x22\x60"


def v2(command: int = 0x21, family: int = 0x11, rest: bytes = V4, size: int | None = None) -> bytes:
    return V2 + bytes((command, family)) + (len(rest) if size is None else size).to_bytes(2, "big") + rest


LAWFUL = [
    (b"PROXY TCP4 10.0.0.7 10.0.0.1 443 8800\r\n", "10.0.0.7:443"),
    (b"PROXY TCP6 2001:db8::7 ::1 65535 0\r\n", "[2001:db8::7]:65535"),
    (b"PROXY UNKNOWN\r\n", None),
    (b"PROXY UNKNOWN ffff:f...f ffff 65535 65535\r\n", None),
    (v2(), "10.0.0.7:443"),
    (v2(rest=V4 + b"\x04\x00\x03abc"), "10.0.0.7:443"),
    (v2(family=0x21, rest=bytes(15) + b"\x01" + bytes(16) + b"\x00\x50\x00\x51"), "[::1]:80"),
    (v2(command=0x20, family=0, rest=b""), None),
    (v2(command=0x20), None),
    (v2(family=0, rest=b"whatever"), None),
    (v2(family=0x31, rest=bytes(216)), "unix"),
]


@pytest.mark.parametrize(("header", "peer"), LAWFUL)
def test_a_header_is_read_whole_and_not_a_byte_further(header: bytes, peer: str | None) -> None:
    for stop in range(1, len(header)):
        assert read_proxy_header(header[:stop]) is None
    assert read_proxy_header(header) == read_proxy_header(header + GET) == ProxyHeader(peer, len(header))


@pytest.mark.parametrize(
    "header",
    [
        GET, b"\x16\x03\x01", b"\r\n\r\nX", b"proxy TCP4 1.1.1.1 1.1.1.1 1 1\r\n", b"PROXY\r\n", b"PROXY  TCP4\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1\r\n", b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1 1\r\n", b"PROXY TCP4 ::1 ::1 1 1\r\n",
        b"PROXY TCP6 1.1.1.1 1.1.1.1 1 1\r\n", b"PROXY TCP4 1.1.1.1 1.1.1.1 65536 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 01 1\r\n", b"PROXY TCP4 1.1.1.1 1.1.1.1 +1 1\r\n",
        b"PROXY TCP4 01.1.1.1 1.1.1.1 1 1\r\n", b"PROXY TCP4 1.1.1.1\n1.1.1.1 1 1\r\n",
        b"PROXY TCP4 1.1.1.1 1.1.1.1 1 1\n",
        b"PROXY TCP4 a\xffb 1.1.1.1 1 1\r\n", b"PROXY UDP4 1.1.1.1 1.1.1.1 1 1\r\n", b"PROXY UNKNOWN " + b"x" * 100,
        b"PROXY TCP6 fe80::1%eth0 ::1 1 1\r\n", b"PROXY UNKNOWNX\r\n",
        v2(command=0x11), v2(command=0x22), v2(command=0x31), v2(family=0x12), v2(family=0x41), v2(rest=V4[:11]),
        v2(family=0x21), v2(size=0xFFFF),
    ],
)  # fmt: skip
def test_what_is_no_header_is_never_taken_for_one(header: bytes) -> None:
    with pytest.raises(ProxyHeaderError):
        read_proxy_header(header)


@given(st.sampled_from([header for header, _ in LAWFUL]), st.integers(0, 300), st.binary(max_size=4))
def test_a_damaged_header_is_read_waited_for_or_refused_and_nothing_else(header: bytes, at: int, put: bytes) -> None:
    damaged = header[:at] + put + header[at + 1 :]
    try:
        read = read_proxy_header(damaged)
    except ProxyHeaderError:
        return
    assert read is None or 0 < read.size_bytes <= len(damaged)


def test_addresses_and_networks_are_trusted_and_nothing_like_them() -> None:
    trusted = Trusted(["10.0.0.0/8", "::1", "192.0.2.1"])
    inside = [("10.255.0.1", 1), ("::1", 2, 0, 0), ("::ffff:10.0.0.1", 3, 0, 0), ("192.0.2.1", 9)]
    assert [trusted.includes(peer) for peer in inside] == [True] * 4
    outside: list[object] = [("11.0.0.1", 1), ("fe80::1%eth0", 1, 0, 2), "", None, b"\0x", "/a", ("nonsense", 1)]
    assert [trusted.includes(peer) for peer in outside] == [False] * 7
    assert [Trusted(["unix"]).includes(peer) for peer in ("", b"\0x", "/a", ("127.0.0.1", 1))] == [True] * 3 + [False]
    for wrong in ("", "10.0.0.1/8", "localhost", "10.0.0.0/33"):
        with pytest.raises(BadValueError):
            Trusted([wrong])


@pytest.mark.parametrize("name", ["", "z", "/a/b", b"\0abc", b"\0", None, ()])
def test_a_unix_socket_is_called_so_whatever_its_client_bound_its_own_to(name: object) -> None:
    assert peer_of(name) == "unix"


# On sockets


def run_with(trusted: Trusted | None, scene: Callable[[HttpServer, list[str]], object]) -> None:
    async def all_of_it() -> None:
        peers: list[str] = []

        def app(exchange: Exchange) -> None:
            peers.append(exchange.peer)
            exchange.respond(200, [], exchange.target)

        server = await start_server(app, "127.0.0.1", 0, ServerLimits(head_s=0.3), trusted=trusted)
        try:
            async with asyncio.timeout(20):
                await scene(server, peers)  # type: ignore[misc]
        finally:
            await server.close(1)
        assert server.connections == 0

    uvloop.run(all_of_it())


async def said(server: HttpServer, *parts: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for part in parts:
        writer.write(part)
        await writer.drain()
        await asyncio.sleep(0)
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""
    finally:
        writer.close()


def test_the_client_is_whom_the_balancer_names_however_the_bytes_are_cut() -> None:
    async def scene(server: HttpServer, peers: list[str]) -> None:
        for header, peer in LAWFUL:
            assert (await said(server, header + GET)).startswith(b"HTTP/1.1 200 ")
            assert peers[-1] == peer or (peer is None and peers[-1].startswith("127.0.0.1:"))
        wire = LAWFUL[0][0] + GET
        assert (await said(server, *[wire[at : at + 1] for at in range(len(wire))])).startswith(b"HTTP/1.1 200 ")
        assert peers[-1] == "10.0.0.7:443"

    run_with(Trusted(["127.0.0.0/8"]), scene)


def test_who_must_send_a_header_and_sends_none_is_closed_without_a_word(caplog: pytest.LogCaptureFixture) -> None:
    async def scene(server: HttpServer, peers: list[str]) -> None:
        for wire in (GET, b"PROXY TCP4 x\r\n" + GET, v2(command=0x33) + GET, b"PROXY ", V2):  # the last two: in time
            assert await said(server, wire) == b""
        assert peers == []

    run_with(Trusted(["127.0.0.1"]), scene)
    assert caplog.text.count("--proxy-protocol") == 1


def test_nobody_else_can_name_an_address() -> None:
    async def scene(server: HttpServer, peers: list[str]) -> None:
        assert (await said(server, LAWFUL[0][0] + GET)).startswith(b"HTTP/1.1 400 ")
        assert (await said(server, v2() + GET)).startswith(b"HTTP/1.1 400 ")
        assert (await said(server, GET)).startswith(b"HTTP/1.1 200 ")
        assert [peer.rpartition(":")[0] for peer in peers] == ["127.0.0.1"]

    run_with(Trusted(["192.0.2.0/24"]), scene)
    run_with(None, scene)


def test_a_second_header_is_a_malformed_request() -> None:
    async def scene(server: HttpServer, peers: list[str]) -> None:
        assert (await said(server, LAWFUL[0][0] * 2 + GET)).startswith(b"HTTP/1.1 400 ")
        assert peers == []

    run_with(Trusted(["127.0.0.1"]), scene)


@pytest.mark.parametrize("bound_to", ["\0kvbudget-test-client", "", "z"])
def test_a_client_of_a_unix_socket_is_served_whatever_it_bound_its_own_to(
    tmp_path: Path, bound_to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def all_of_it() -> None:
        server = await start_server(
            lambda exchange: exchange.respond(200, [], exchange.peer.encode()), f"unix:{tmp_path}/s", 0, ServerLimits()
        )
        with socket.socket(socket.AF_UNIX) as client:
            client.bind(bound_to)
            client.setblocking(False)
            await asyncio.get_running_loop().sock_connect(client, f"{tmp_path}/s")
            reader, writer = await asyncio.open_unix_connection(sock=client)
            writer.write(GET)
            async with asyncio.timeout(10):
                assert (await reader.read()).endswith(b"unix")
            writer.close()
        await server.close(1)

    uvloop.run(all_of_it())


def test_a_socket_that_another_gate_listens_on_is_not_taken_from_it(tmp_path: Path) -> None:
    async def all_of_it() -> None:
        path, limits = f"unix:{tmp_path}/s", ServerLimits()
        first = await start_server(lambda exchange: exchange.respond(200, [], b"first"), path, 0, limits)
        with pytest.raises(OSError, match="another process listens"):
            await start_server(lambda exchange: exchange.respond(200, [], b"second"), path, 0, limits)
        reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/s")
        writer.write(GET)
        assert (await reader.read()).endswith(b"first")
        writer.close()
        await first.close(1)
        second = await start_server(lambda exchange: exchange.respond(200, [], b"second"), path, 0, limits)
        await second.close(1)  # what the first left lying there is nobody's

    uvloop.run(all_of_it())
