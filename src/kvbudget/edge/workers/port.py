"""Decides whose a port is that several processes of one gate listen on: theirs, and nobody else's."""

import socket

from kvbudget.edge.asgi import check_port
from kvbudget.errors import BadValueError


class HeldPort:
    """`host`:`port` (0: any free one), held without listening: connections go to those who do. `close` gives it up."""

    def __init__(self, host: str, port: int) -> None:
        """Raises BadValueError where it is not to be had."""
        check_port(port)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, _, _, _, address = found[0]
            # With SO_REUSEPORT, a second gate of the same user could take half of the connections unnoticed. So it is
            # asked for without first: that fails where anybody listens.
            with socket.socket(family, socket.SOCK_STREAM) as alone:
                alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                alone.bind(address)
                address = alone.getsockname()
            self._socket = socket.socket(family, socket.SOCK_STREAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._socket.bind(address)
        except OSError as error:
            told = f"cannot listen on {host}:{port}: {error.strerror or error}"
            raise BadValueError(told, fix="choose another --host or --port") from None
        self.port: int = address[1]

    def close(self) -> None:
        """Somebody else may have it."""
        self._socket.close()
