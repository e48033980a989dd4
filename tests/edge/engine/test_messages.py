import json
from collections.abc import Callable
from typing import Any

Run = Callable[..., None]
HI = [{"role": "user", "content": "hi"}]


def body(**more: Any) -> dict[str, Any]:
    return {"model": "embedded", "messages": HI, "max_tokens": 5, "ignore_eos": True, **more}


def test_a_message_is_counted_as_the_chat_that_it_is(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        answer = (await bench.client.post("/v1/messages", json=body(system="be brief"))).json()
        chat = {"messages": [{"role": "system", "content": "be brief"}, *HI]}
        told = (await bench.client.post("/tokenize", json=chat)).json()["count"]
        assert answer["usage"] == {"input_tokens": told, "output_tokens": 5}
        assert (answer["type"], answer["role"], answer["stop_reason"]) == ("message", "assistant", "max_tokens")
        counted = await bench.client.post("/v1/messages/count_tokens", json={"messages": HI, "system": "be brief"})
        assert counted.json()["input_tokens"] == told

    with_engine(scenario)


def test_a_stream_has_one_delta_for_each_token_between_the_events_of_the_api(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        plain = (await bench.client.post("/v1/messages", json=body())).json()
        answer = await bench.client.post("/v1/messages", json=body(stream=True))
        blocks = [block.split("\n") for block in answer.text.removesuffix("\n\n").split("\n\n")]
        events = [json.loads(data.removeprefix("data: ")) for _, data in blocks]
        assert [name.removeprefix("event: ") for name, _ in blocks] == [event["type"] for event in events]
        kinds = [event["type"] for event in events]
        deltas = ["content_block_delta"] * 5
        ends = ["content_block_stop", "message_delta", "message_stop"]
        assert kinds == ["message_start", "content_block_start", *deltas, *ends]
        text = "".join(event["delta"]["text"] for event in events[2:7])
        assert text == plain["content"][0]["text"]
        assert events[-2]["usage"] == plain["usage"]

    with_engine(scenario)


def test_an_answer_that_ends_by_itself_says_so(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        answer = (await bench.client.post("/v1/messages", json=body(max_tokens=500, ignore_eos=False))).json()
        assert answer["stop_reason"] == "end_turn"

    with_engine(scenario, mean_output_tokens=3)


def test_errors_are_of_the_form_of_the_api(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        for wrong, status in ((body(max_tokens=None), 400), (body(model="other"), 404), (body(messages=[]), 400),
                              (body(messages=[*HI, {"role": "system", "content": "late"}]), 400)):  # fmt: skip
            answer = await bench.client.post("/v1/messages", json=wrong)
            assert answer.status_code == status
            assert set(answer.json()) == {"type", "error"}
            assert set(answer.json()["error"]) == {"type", "message"}

    with_engine(scenario)
