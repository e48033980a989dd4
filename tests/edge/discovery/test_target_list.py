"""Lists of engines in the form of Prometheus' HTTP service discovery."""

import asyncio
import json

import pytest

from kvbudget.edge.discovery.sources import TargetList
from kvbudget.edge.discovery.target_list import ListReader, targets_in
from kvbudget.edge.http.upstream import UpstreamError
from kvbudget.errors import BadConfigError


def urls(document: object) -> list[str]:
    return [one.url for one in targets_in(json.dumps(document).encode())]


def test_each_target_of_each_group_is_an_engine() -> None:
    groups = [
        {"targets": ["10.0.0.7:8000", "engine-1:8000"], "labels": {"job": "vllm"}},
        {"targets": ["[fd00::7]:8443"], "labels": {"__scheme__": "https"}},
        {"targets": []},
    ]
    assert urls(groups) == ["http://10.0.0.7:8000", "http://engine-1:8000", "https://[fd00::7]:8443"]
    assert urls([]) == []


@pytest.mark.parametrize(
    "document",
    [
        {}, ["a:1"], [{"labels": {}}], [{"targets": "a:1"}], [{"targets": ["a"]}], [{"targets": [7]}],
        [{"targets": ["a:1/x"]}], [{"targets": ["a:1"], "labels": {"__scheme__": "ftp"}}],
        [{"targets": ["u:p@a:1"]}], [{"targets": ["a b:1"]}], [{"targets": ["a:1"], "labels": []}, 7],
        [{"targets": ["a:99999999"]}], [{"targets": ["a:1"] * 10_001}],
    ],
)  # fmt: skip
def test_what_is_no_such_list_is_refused_as_a_whole(document: object) -> None:
    with pytest.raises(BadConfigError):
        urls([{"targets": ["good:1"]}, *document] if isinstance(document, list) else document)


def test_no_json_is_refused() -> None:
    with pytest.raises(BadConfigError, match="no JSON"):
        targets_in(b"<html>")


def test_a_list_is_read_from_a_server_with_path_and_query() -> None:
    async def scene() -> None:
        heads: list[str] = []
        answers = [(200, b'[{"targets": ["10.0.0.7:8000"]}]'), (500, b"[]")]

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            status, body = answers.pop(0)
            writer.write(
                b"HTTP/1.1 %d X\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (status, len(body)) + body
            )
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader = ListReader(TargetList(f"http://127.0.0.1:{port}/sd?pool=chat"))
        try:
            assert [one.url for one in await reader.ask()] == ["http://10.0.0.7:8000"]
            assert heads[0].startswith("GET /sd?pool=chat HTTP/1.1\r\n")
            with pytest.raises(BadConfigError, match="answered 500"):
                await reader.ask()
            server.close()
            await server.wait_closed()
            with pytest.raises(UpstreamError):
                await reader.ask()
        finally:
            reader.upstream.close()

    asyncio.run(scene())
