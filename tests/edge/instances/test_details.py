import asyncio
import json
from typing import Any

import pytest

from kvbudget.edge.http.upstream import Response, UpstreamError
from kvbudget.edge.instances.details import Details, details_of
from kvbudget.engines.readings import pool_of_tokens


def asked(engine: str, pages: dict[str, Any]) -> tuple[Details, list[str]]:
    paths: list[str] = []

    async def get(path: bytes) -> Response:
        paths.append(path.decode())
        page = pages.get(path.decode())
        if page == "down":
            raise UpstreamError("timeout", "no answer")
        body = page if isinstance(page, bytes) else json.dumps(page).encode()
        return Response(200 if page is not None else 404, [], body)

    return asyncio.run(details_of(get, engine)), paths


def test_sglang_tells_its_pages_and_limits() -> None:
    info = {"page_size": 16, "max_total_num_tokens": 4000, "context_length": 2048, "max_running_requests": 32}
    details, paths = asked("sglang", {"/get_server_info": info})
    assert (details.max_context, details.max_num_seqs, paths) == (2048, 32, ["/get_server_info"])
    pool = details.pool_of(pool_of_tokens(4000, 1))
    assert pool is not None
    assert (pool.usable_blocks, pool.block_size) == (250, 16)


def test_tgi_tells_its_limits_of_requests() -> None:
    info = {"model_id": "m", "max_total_tokens": 4096, "max_batch_total_tokens": 16000, "max_concurrent_requests": 128}
    details, _ = asked("tgi", {"/info": info})
    assert (details.models, details.max_context, details.max_num_seqs) == (("m",), 4096, 128)
    pool = details.pool_of(None)
    assert pool is not None
    assert (pool.usable_blocks, pool.block_size) == (16000, 1)


def test_an_engine_that_tells_no_name_is_asked_for_all_pages() -> None:
    props = {"default_generation_settings": {"n_ctx": 8192}, "total_slots": 4}
    details, paths = asked("", {"/get_server_info": {"other": 1}, "/info": {"other": 1}, "/props": props})
    assert paths == ["/get_server_info", "/info", "/props"]
    assert (details.engine, details.max_context, details.max_num_seqs) == ("llamacpp", 8192, 4)
    pool = details.pool_of(None)
    assert pool is not None
    assert pool.usable_blocks == 8192, "all slots share it, as far as is known"


@pytest.mark.parametrize("page", [None, "down", b"no json", [1], {"default_generation_settings": 5}])
def test_what_goes_wrong_tells_nothing(page: Any) -> None:
    details, _ = asked("llamacpp", {"/props": page})
    assert details == Details(engine="llamacpp")
    assert details.pool_of(None) is None


def test_numbers_that_cannot_be_are_not_taken() -> None:
    details, _ = asked("tgi", {"/info": {"max_total_tokens": True, "max_concurrent_requests": -1}})
    assert (details.max_context, details.max_num_seqs) == (None, None)
