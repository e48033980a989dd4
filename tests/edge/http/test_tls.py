"""TLS to clients and to engines, certificates that change while it serves, Unix sockets on both sides, IPv6."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trustme
import uvloop

from kvbudget.edge.http.address import address_of
from kvbudget.edge.http.exchange import Exchange
from kvbudget.edge.http.limits import ServerLimits, UpstreamLimits
from kvbudget.edge.http.server import HttpServer, start_server
from kvbudget.edge.http.tls import ServerTls, engine_context
from kvbudget.edge.http.upstream import Upstream, UpstreamError
from kvbudget.errors import BadValueError

Scene = Callable[[], Awaitable[None]]


def run(scene: Scene, *, limit_s: float = 20) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(limit_s):
            await scene()

    uvloop.run(bounded())


def echo(exchange: Exchange) -> None:
    exchange.respond(200, [(b"content-type", b"text/plain")], exchange.body or b"empty")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def files(folder: Path, authority: trustme.CA, name: str = "localhost") -> tuple[str, str]:
    certificate = authority.issue_cert(name, "127.0.0.1", "::1")
    chain, key = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    key.write_bytes(certificate.private_key_pem.bytes())
    return str(chain), str(key)


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


async def tls_server(
    folder: Path, authority: trustme.CA, limits: ServerLimits | None = None
) -> tuple[HttpServer, ServerTls]:
    tls = ServerTls(*files(folder, authority))
    server = await start_server(echo, "127.0.0.1", 0, limits or ServerLimits(), tls=tls.context)
    return server, tls


def test_a_gate_in_tls_is_an_origin_in_tls(authority: trustme.CA, tmp_path: Path) -> None:
    async def scene() -> None:
        server, _ = await tls_server(tmp_path, authority)
        upstream = Upstream(f"https://127.0.0.1:{server.port}", UpstreamLimits(), trusting(authority))
        for body in (b"small", b"x" * 1_000_000):
            answer = await upstream.request(b"POST", b"/", [], body, 10)
            assert (answer.status, answer.body) == (200, body)
        assert upstream.connections == 1  # kept and used again
        upstream.close()
        await server.close(1)

    run(scene)


def test_a_certificate_of_a_stranger_is_no_connection(authority: trustme.CA, tmp_path: Path) -> None:
    async def scene() -> None:
        server, _ = await tls_server(tmp_path, trustme.CA())
        upstream = Upstream(f"https://127.0.0.1:{server.port}", UpstreamLimits(), trusting(authority))
        with pytest.raises(UpstreamError) as failed:
            await upstream.request(b"GET", b"/", [], b"", 10)
        assert failed.value.kind == "unreachable"
        upstream.close()
        await server.close(1)

    run(scene)


def test_a_changed_certificate_is_shown_to_new_connections_and_a_damaged_one_changes_nothing(
    authority: trustme.CA, tmp_path: Path
) -> None:
    async def shown(port: int) -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(authority))
        names = writer.get_extra_info("peercert")["subjectAltName"]
        writer.close()
        return str(dict(names)["DNS"])

    async def scene() -> None:
        server, tls = await tls_server(tmp_path, authority)
        assert await shown(server.port) == "localhost"
        files(tmp_path, authority, "other.test")
        tls.reload()
        assert await shown(server.port) == "other.test"
        (tmp_path / "key.pem").write_text("damaged")
        with pytest.raises(BadValueError, match="--tls-cert"):
            tls.reload()
        assert await shown(server.port) == "other.test"
        await server.close(1)

    run(scene)


def test_who_does_not_finish_the_handshake_is_closed_and_plain_http_is_no_crash(
    authority: trustme.CA, tmp_path: Path
) -> None:
    async def scene() -> None:
        server, _ = await tls_server(tmp_path, authority, ServerLimits(head_s=0.2))
        silent, quiet = await asyncio.open_connection("127.0.0.1", server.port)
        plain, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"HTTP" not in await plain.read()
        assert await silent.read() == b""
        quiet.close()
        writer.close()
        await server.close(1)

    run(scene)


def test_a_refused_request_in_tls_still_gets_its_answer(authority: trustme.CA, tmp_path: Path) -> None:
    async def scene() -> None:
        server, _ = await tls_server(tmp_path, authority)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=trusting(authority))
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        await server.close(1)
        assert server.connections == 0

    run(scene)


def test_unix_sockets_on_both_sides(tmp_path: Path) -> None:
    async def scene() -> None:
        path = f"unix:{tmp_path}/gate.sock"
        server = await start_server(echo, path, 0, ServerLimits())
        upstream = Upstream(path, UpstreamLimits())
        answer = await upstream.request(b"POST", b"/", [], b"y" * 300_000, 10)
        assert (answer.status, len(answer.body)) == (200, 300_000)
        reader, writer = await asyncio.open_unix_connection(f"{tmp_path}/gate.sock")
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        upstream.close()
        await server.close(1)

    run(scene)


def test_a_unix_client_that_hangs_up_while_it_must_not_be_read_is_found(tmp_path: Path) -> None:
    async def scene() -> None:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def hold(exchange: Exchange) -> None:
            exchange.on_gone = lambda: gone.set_result(None)

        server = await start_server(hold, f"unix:{tmp_path}/gate.sock", 0, ServerLimits(idle_s=0.2))
        _, writer = await asyncio.open_unix_connection(f"{tmp_path}/gate.sock")
        writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" + b"GET /2 HTTP/1.1\r\nhost: x\r\n\r\n" * 20_000)
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await gone
        await server.close(1)

    run(scene)


def test_ipv6(tmp_path: Path) -> None:
    async def scene() -> None:
        server = await start_server(echo, "::1", 0, ServerLimits())
        upstream = Upstream(f"http://[::1]:{server.port}", UpstreamLimits())
        assert (await upstream.request(b"POST", b"/", [], b"six", 10)).body == b"six"
        upstream.close()
        await server.close(1)

    run(scene)


@pytest.mark.parametrize(
    "url",
    [
        "unix:relative",
        "unix:",
        "unix:/" + "x" * 107,
        "ftp://a",
        "https://",
        "https://u:p@a",
        "https://a?x",
        "http://[::1",
    ],
)
def test_what_is_no_address_is_refused_with_what_is(url: str) -> None:
    with pytest.raises(BadValueError, match="backend address"):
        address_of(url)


def test_the_port_that_is_not_said_is_the_scheme_s() -> None:
    assert address_of("https://engine.test").authority == b"engine.test:443"
    assert address_of("http://engine.test/v").prefix == b"/v"


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    with pytest.raises(BadValueError, match="--tls-cert"):
        ServerTls(str(tmp_path / "none"), None)
    with pytest.raises(BadValueError, match="--backend-ca"):
        engine_context(str(tmp_path / "x"))
