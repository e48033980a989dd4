"""TLS to a real server, whose certificate is checked."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from kvbudget.edge.bank.store import LedgerError
from ledger_gates import AsyncGates, opened, run
from ledger_servers import Server, free_port, running


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA, tmp_path: Path) -> Iterator[tuple[Server, int]]:
    """A Redis (the wheel of Valkey is without TLS) and its port with TLS; it wants a certificate of its clients too."""
    folder = tmp_path / "s"
    folder.mkdir()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued = authority.issue_cert("ledger.test", "127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    port = free_port()
    options = ["tls-port", str(port), "tls-cert-file", "cert.pem", "tls-key-file", "key.pem"]
    options += ["tls-ca-cert-file", "ca.pem", "tls-auth-clients", "no"]
    with running("redis", folder, options) as made:
        yield made, port


def test_the_ledger_is_spoken_to_with_tls_and_its_certificate_is_checked(
    server: tuple[Server, int], tmp_path: Path
) -> None:
    made, port = server

    async def scene() -> None:
        async with opened(f"rediss://127.0.0.1:{port}?ca={made.folder}/ca.pem") as store:
            await AsyncGates(store).call("a", keeps=5)
        async with opened(f"valkeys://127.0.0.1:{port}?ca={made.folder}/ca.pem&tls_name=ledger.test") as store:
            await AsyncGates(store, "q").call("a", keeps=5)
        for options, match in (
            ("", "certificate verify failed"),
            (f"?ca={made.folder}/ca.pem&tls_name=other.test", "certificate verify failed|not valid for 'other.test'"),
        ):
            with pytest.raises(LedgerError, match=match):
                async with opened(f"rediss://127.0.0.1:{port}{options}"):
                    pass
        with pytest.raises(LedgerError):  # plain, where TLS is spoken
            async with opened(f"redis://127.0.0.1:{port}", timeout_s=1.0):
                pass
        with pytest.raises(LedgerError):  # TLS, where it is not
            async with opened(f"rediss://127.0.0.1:{made.port}?ca={made.folder}/ca.pem", timeout_s=1.0):
                pass

    run(scene)


def test_a_certificate_of_our_own_is_shown_where_the_server_wants_one(
    server: tuple[Server, int], authority: trustme.CA, tmp_path: Path
) -> None:
    made, port = server
    ours = authority.issue_cert("gate.test")
    ours.cert_chain_pems[0].write_to_path(str(tmp_path / "ours.pem"))
    ours.private_key_pem.write_to_path(str(tmp_path / "ours.key"))
    made.ask("CONFIG", "SET", "tls-auth-clients", "yes")

    async def scene() -> None:
        url = f"rediss://127.0.0.1:{port}?ca={made.folder}/ca.pem"
        with pytest.raises(LedgerError):
            async with opened(url, timeout_s=1.0):
                pass
        async with opened(f"{url}&cert={tmp_path}/ours.pem&key={tmp_path}/ours.key") as store:
            await AsyncGates(store).call("a", keeps=5)

    run(scene)
