"""A Kubernetes API server for the EndpointSlices of one namespace: lists, watches, bookmarks, and what is forgotten.

Speaks the protocol of the real one over 127.0.0.1: a watch is a chunked answer of one JSON object a line, begins behind
the resourceVersion that it names, and gets 410 when that is older than what is remembered.
"""

import asyncio
import json
import ssl
from typing import Any
from urllib.parse import parse_qs, urlsplit


def endpoint(host: str, **conditions: bool | None) -> dict[str, Any]:
    return {"addresses": [host], "conditions": {"ready": True, "serving": True, "terminating": False, **conditions}}


def slice_of(name: str, port: int, *endpoints: dict[str, Any], service: str = "vllm") -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "llm", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "endpoints": list(endpoints),
        "ports": [{"name": "http", "port": port, "protocol": "TCP"}],
    }


class FakeApiServer:
    """`token`: what must be brought; None: nobody is asked. `watches`: the versions that they began at."""

    def __init__(self) -> None:
        self.slices: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.remembered_from = 0
        self.token: str | None = None
        self.forbidden: set[str] = set()  # "list", "watch"
        self.lists = 0
        self.watches: list[str] = []
        self.targets: list[str] = []
        self.garbage: bytes | None = None  # instead of a list
        self._events: list[tuple[int, bytes]] = []
        self._watching: set[asyncio.StreamWriter] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self, tls: ssl.SSLContext | None = None, port: int = 0) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=tls)
        scheme = "http" if tls is None else "https"
        return f"{scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()

    @property
    def watched_by(self) -> int:
        return len(self._watching)

    def put(self, made: dict[str, Any]) -> None:
        name = made["metadata"]["name"]
        kind = "MODIFIED" if name in self.slices else "ADDED"
        self.slices[name] = made
        self._happened(kind, made)

    def delete(self, name: str) -> None:
        self._happened("DELETED", self.slices.pop(name))

    def bookmark(self) -> None:
        """As after changes of other objects: only the version goes on."""
        self.version += 1
        meta = {"resourceVersion": str(self.version)}
        self.say({"type": "BOOKMARK", "object": {"kind": "EndpointSlice", "metadata": meta}})

    def forget(self) -> None:
        """What was before now is no place to begin at any more."""
        self.version += 10
        self.remembered_from = self.version
        self._events.clear()

    def say(self, event: Any) -> None:
        self._send(json.dumps(event).encode() + b"\n")

    def end_watches(self) -> None:
        """As the server does after timeoutSeconds."""
        for writer in self._watching:
            writer.write(b"0\r\n\r\n")
        self._watching.clear()

    def cut(self) -> None:
        """Connections break."""
        for writer in list(self._writers):
            writer.transport.abort()
        self._watching.clear()

    def _happened(self, kind: str, made: dict[str, Any]) -> None:
        self.version += 1
        told = {**made, "metadata": {**made["metadata"], "resourceVersion": str(self.version)}}
        line = json.dumps({"type": kind, "object": told}).encode() + b"\n"
        self._events.append((self.version, line))
        self._send(line)

    def _send(self, line: bytes) -> None:
        half = len(line) // 2  # a line need not come in one piece
        for writer in self._watching:
            for piece in (line[:half], line[half:]):
                writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self._answer(head, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            self._watching.discard(writer)
            writer.close()

    def _answer(self, head: str, writer: asyncio.StreamWriter) -> None:
        lines = head.split("\r\n")
        target = lines[0].split(" ")[1]
        self.targets.append(target)
        if self.token is not None and f"authorization: Bearer {self.token}" not in lines:
            self._status(writer, 401, "Unauthorized")
            return
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path != "/apis/discovery.k8s.io/v1/namespaces/llm/endpointslices":
            self._status(writer, 404, "not found")
        elif ("watch" if "watch" in query else "list") in self.forbidden:
            told = 'endpointslices.discovery.k8s.io is forbidden: User "system:serviceaccount:llm:gate" cannot list'
            self._status(writer, 403, told)
        elif "watch" in query:
            self._watch(writer, query)
        elif self.garbage is not None:
            self._send_whole(writer, 200, self.garbage)
        else:
            self.lists += 1
            kept = [one for one in self.slices.values() if self._selected(one, query)]
            document = {"kind": "EndpointSliceList", "metadata": {"resourceVersion": str(self.version)}, "items": kept}
            self._send_whole(writer, 200, json.dumps(document).encode())

    def _selected(self, one: dict[str, Any], query: dict[str, str]) -> bool:
        name, _, value = query["labelSelector"].partition("=")
        labels: dict[str, str] = one["metadata"]["labels"]
        return labels.get(name) == value

    def _watch(self, writer: asyncio.StreamWriter, query: dict[str, str]) -> None:
        self.watches.append(query["resourceVersion"])
        since = int(query["resourceVersion"])
        if since < self.remembered_from:
            self._status(writer, 410, f"too old resource version: {since} ({self.remembered_from})")
            return
        assert query["allowWatchBookmarks"] == "true"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        for version, line in self._events:
            if version > since:
                writer.write(b"%x\r\n%b\r\n" % (len(line), line))
        self._watching.add(writer)

    def _status(self, writer: asyncio.StreamWriter, code: int, message: str) -> None:
        document = {"kind": "Status", "status": "Failure", "message": message, "code": code}
        self._send_whole(writer, code, json.dumps(document).encode())

    def _send_whole(self, writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n" % (status, len(body)) + body)
