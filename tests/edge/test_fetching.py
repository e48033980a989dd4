"""Addresses are parsed once, and no answer is waited for beyond the deadline, however slowly it drips."""

import socket
import threading
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kvbudget.edge.fetching import Deadline, address_of, opener_until
from kvbudget.errors import BadValueError


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://x:99999/", "http://x:abc", "http:///x", "ftp://x", "nonsense", "http://x\x1b[31m/",
     "http://u:secret@x", "http://u:secret@[", "http://x/" + "y" * 3000, "http://x y/", "http://\u00e9/"],
)  # fmt: skip
def test_an_address_that_cannot_be_asked_is_an_error_with_its_reason(url: str) -> None:
    with pytest.raises(BadValueError, match=r"^where") as caught:
        address_of(url, "where", fix="write another")
    assert str(caught.value).isprintable()
    assert "secret" not in str(caught.value)


def test_the_parts_of_a_good_address_are_given() -> None:
    parts = address_of("https://[::1]:8000/v1", "where", fix="")
    assert (parts.hostname, parts.port, parts.path) == ("::1", 8000, "/v1")


@contextmanager
def dripping(head: bytes, drip: bytes) -> Iterator[str]:
    """A server that sends `head` and then `drip` again and again, until the client has gone."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.settimeout(5)
                client.recv(4096)
                try:
                    client.sendall(head)
                    while True:
                        client.sendall(drip)
                        gone.wait(0.02)
                except OSError:
                    pass

        gone = threading.Event()
        thread = threading.Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        finally:
            thread.join(10)


@pytest.mark.parametrize(
    ("head", "drip"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\nA: ", b"x"),
        (b"HTTP/1.1 2", b"0"),
    ],
    ids=["length", "to the end", "chunked", "head", "status"],
)
def test_an_answer_that_drips_ends_at_the_deadline(head: bytes, drip: bytes) -> None:
    def read(url: str) -> bytes:
        deadline = Deadline(0.2)
        with opener_until(deadline).open(url, timeout=deadline.left_s()) as answer:
            body: bytes = answer.read(65536)
        return body

    with (
        dripping(head, drip) as url,
        pytest.raises((TimeoutError, urllib.error.URLError), match=r"no whole answer|timed"),
    ):
        read(url)
