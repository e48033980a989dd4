import json
from collections.abc import Callable
from typing import Any

Run = Callable[..., None]


def body(**more: Any) -> dict[str, Any]:
    return {"model": "embedded", "input": "hi", "max_output_tokens": 4, "ignore_eos": True, **more}


def test_a_response_is_counted_as_the_chat_that_it_is(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        answer = (await bench.client.post("/v1/responses", json=body(instructions="be brief"))).json()
        chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
        told = (await bench.client.post("/tokenize", json={"messages": chat})).json()["count"]
        usage = answer["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (told, 4, told + 4)
        assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
        assert (answer["instructions"], answer["max_output_tokens"]) == ("be brief", 4)

    with_engine(scenario)


def test_a_stream_counts_its_events_and_ends_with_the_whole_response(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        plain = (await bench.client.post("/v1/responses", json=body())).json()
        answer = await bench.client.post("/v1/responses", json=body(stream=True))
        blocks = [block.split("\n") for block in answer.text.removesuffix("\n\n").split("\n\n")]
        events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert [event["type"] for event in events] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            *["response.output_text.delta"] * 4,
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        text = plain["output"][0]["content"][0]["text"]
        assert "".join(event["delta"] for event in events[4:8]) == events[8]["text"] == text
        assert events[-1]["response"]["usage"] == plain["usage"]

    with_engine(scenario)


def test_no_response_follows_another_and_what_is_no_message_is_refused(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        for wrong, status in (
            (body(previous_response_id="resp_1"), 404),
            (body(input=[{"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"}]), 400),
            (body(input=[]), 400),
        ):
            answer = await bench.client.post("/v1/responses", json=wrong)
            assert (answer.status_code, set(answer.json())) == (status, {"error"})

    with_engine(scenario)
