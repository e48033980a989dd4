import json
from collections.abc import Callable
from typing import Any

Run = Callable[..., None]


def body(**parameters: Any) -> dict[str, Any]:
    return {"inputs": "once upon a time", "parameters": {"max_new_tokens": 4, "ignore_eos_token": True, **parameters}}


def test_details_and_headers_tell_the_same(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        bare = await bench.client.post("/generate", json=body())
        assert set(bare.json()) == {"generated_text"}
        told = (await bench.client.post("/generate", json=body(details=True))).json()
        details = told["details"]
        assert told["generated_text"] == bare.json()["generated_text"]
        assert (details["finish_reason"], details["generated_tokens"], details["input_length"]) == ("length", 4, 4)
        assert "".join(token["text"] for token in details["tokens"]) == told["generated_text"]
        assert (bare.headers["x-prompt-tokens"], bare.headers["x-generated-tokens"]) == ("4", "4")

    with_engine(scenario)


def test_a_stream_has_one_event_for_each_token_and_the_last_one_has_it_all(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        plain = (await bench.client.post("/generate", json=body())).json()
        answer = await bench.client.post("/generate_stream", json=body())
        events = [json.loads(line.removeprefix("data:")) for line in answer.text.split("\n\n") if line]
        assert [event["index"] for event in events] == [1, 2, 3, 4]
        assert "".join(event["token"]["text"] for event in events) == events[-1]["generated_text"]
        assert events[-1]["generated_text"] == plain["generated_text"]
        assert events[-1]["details"]["generated_tokens"] == 4
        assert events[0]["details"] is None

    with_engine(scenario)


def test_the_token_that_ends_an_answer_is_special_and_counted(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        asked = body(max_new_tokens=500, ignore_eos_token=False, details=True)
        told = (await bench.client.post("/generate", json=asked)).json()["details"]
        answer = await bench.client.post("/generate_stream", json=asked)
        last = json.loads(answer.text.rstrip("\n").rsplit("data:", 1)[1])
        assert (last["token"]["special"], last["token"]["text"]) == (True, "")
        assert last["details"]["generated_tokens"] == told["generated_tokens"]
        assert told["finish_reason"] == "eos_token"

    with_engine(scenario, mean_output_tokens=3)


def test_what_is_truncated_keeps_its_end(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        told = await bench.client.post("/generate", json=body(truncate=2))
        assert told.headers["x-prompt-tokens"] == "2"

    with_engine(scenario)


def test_what_cannot_be_validated_is_422_and_flat(with_engine: Run) -> None:
    async def scenario(bench: Any) -> None:
        for path, wrong in (
            ("/generate", {"inputs": 5}),
            ("/generate", {"inputs": "a", "parameters": []}),
            ("/generate_stream", body(best_of=2)),
            ("/generate", {"inputs": "x" * 4 * 9000}),
        ):
            answer = await bench.client.post(path, json=wrong)
            assert (answer.status_code, set(answer.json())) == (422, {"error", "error_type"})

    with_engine(scenario)
