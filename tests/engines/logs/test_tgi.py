"""Start-up logs of TGI, plain and JSON."""

import json

from kvbudget.engines.logs.read import receipt_of_log

ARGS = (
    '2023-08-22T18:35:50.966384Z  INFO text_generation_launcher: Args { model_id: "meta-llama/Llama-2-13b-chat-hf", '
    "revision: None, num_shard: Some(4), max_total_tokens: 8192, max_batch_total_tokens: None, "
    'api_key: Some("secret"), env: false }\n'
)


def test_the_plain_log_tells_the_tokens() -> None:
    receipt = receipt_of_log(
        ARGS
        + "2024-09-03T04:40:19.370247Z  INFO text_generation_router::server: router/src/server.rs:1651: Setting max "
        "batch total tokens to 19056\n"
    )
    assert (receipt.engine, receipt.tokens, receipt.max_model_len, receipt.ranks) == ("tgi", 19056, 8192, 4)
    assert receipt.model == "meta-llama/Llama-2-13b-chat-hf"
    assert receipt.blocks_given is None
    assert "secret" not in str(receipt)


def test_the_json_log_tells_the_same() -> None:
    flat = {"level": "INFO", "message": "Setting max batch total tokens to 133696", "target": "text_generation_router"}
    nested = {"level": "INFO", "fields": {"message": "Setting max batch total tokens to 133696"}, "target": "x"}
    for line in (json.dumps(flat), json.dumps(nested)):
        assert receipt_of_log(line).tokens == 133696


def test_a_batch_that_was_asked_for_is_not_decided_by_memory() -> None:
    asked = ARGS.replace("max_batch_total_tokens: None", "max_batch_total_tokens: Some(16000)")
    receipt = receipt_of_log(asked + "INFO text_generation_router: Setting max batch total tokens to 16000\n")
    assert receipt.blocks_given is True


def test_too_little_memory_is_a_refusal() -> None:
    told = "Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`"
    assert receipt_of_log(f"{ARGS}ERROR warmup: text_generation_client: {told}\n").refusal == told
