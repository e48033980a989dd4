"""LangChain's client of the OpenAI API, unchanged, against the gate before the embedded engine."""

import asyncio
from typing import Any

import httpx
import openai
import pytest
import uvloop
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr

from kvbudget.edge.engine.server import start_engine
from kvbudget.edge.engine.settings import EngineSettings
from kvbudget.edge.service import ServiceSettings, start_service
from kvbudget.gate.gate import GateConfig
from kvbudget.gate.policies import Policy

KEY = SecretStr("key")


def weather(city: str) -> str:
    """Tells the weather."""
    return city


def test_langchain_chats_streams_calls_tools_embeds_and_hears_what_is_too_long() -> None:
    async def scene(url: str, gateway: Any, waiting: httpx.AsyncClient, blocking: httpx.Client) -> None:
        told: dict[str, Any] = {"base_url": f"{url}/v1", "api_key": KEY, "model": "embedded", "max_retries": 0}
        told |= {"http_async_client": waiting, "http_client": blocking}  # its own are kept for ever, and never closed
        model = ChatOpenAI(**told, max_completion_tokens=9, temperature=0, stream_usage=True)
        talk = [SystemMessage("Be brief."), HumanMessage("What is the weather in Kyiv?")]
        plain = await model.ainvoke(talk)
        assert plain.usage_metadata is not None
        assert 0 < plain.usage_metadata["output_tokens"] <= 9
        chunks = [chunk async for chunk in model.astream(talk)]
        assert "".join(str(chunk.content) for chunk in chunks) == plain.content
        assert [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata] == [plain.usage_metadata]
        call = {"name": "weather", "args": {"city": "Kyiv"}, "id": "c1"}
        turns = [*talk, AIMessage("", tool_calls=[call]), ToolMessage("Sunny", tool_call_id="c1")]
        answered = await model.bind_tools([weather]).ainvoke(turns)
        assert answered.usage_metadata is not None
        assert answered.usage_metadata["input_tokens"] > plain.usage_metadata["input_tokens"]
        both = await model.abatch([talk, [HumanMessage("hi")]])
        assert len(both) == 2
        assert await asyncio.to_thread(lambda: model.invoke(talk).content) == plain.content
        items = ChatOpenAI(**told, max_completion_tokens=9, use_responses_api=True)
        assert (await items.ainvoke(talk)).content
        embeddings = OpenAIEmbeddings(**told, check_embedding_ctx_length=False)
        assert len((await embeddings.aembed_documents(["a", "b"]))[1]) == 8
        with pytest.raises(openai.BadRequestError, match="This model's maximum context length is 256 tokens"):
            await model.ainvoke([HumanMessage("x" * 4000)])
        gateway.start_draining()
        with pytest.raises(openai.InternalServerError):  # 503
            await model.ainvoke(talk)

    async def all_of_it() -> None:
        engine = await start_engine(EngineSettings(max_model_len=256))
        gate = GateConfig(policy=Policy.WORST_CASE, abort_tail_ns=0)
        service = await start_service(ServiceSettings(backend_url=engine.url, port=0, admin_port=0, gate=gate))
        try:
            async with asyncio.timeout(60):
                async with httpx.AsyncClient() as waiting:
                    with httpx.Client() as blocking:
                        await scene(service.url, service.gateway, waiting, blocking)
            assert service.gateway.metrics.token_drift == 0
        finally:
            await service.close()
            await engine.close()
            assert service.gate.promised_blocks() == 0

    uvloop.run(all_of_it())
