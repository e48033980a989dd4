"""Decides what chat vLLM 0.32's own code makes of bodies of /v1/messages and /v1/responses: JSON lines in and out.

Runs with the python of the engine's virtual environment; needs no weights, no GPU and nothing of kvbudget. A line is
[surface, body], an answer {"messages", "tools", "effort"}, or {"error"} where vLLM refuses the body.
"""

# What it imports is in the engine's environment, not here.
# mypy: ignore-errors
import json
import os
import sys

from vllm.entrypoints.anthropic.protocol import AnthropicMessagesRequest
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.openai.responses.utils import construct_input_messages, construct_tool_dicts


def main() -> None:
    """Answer the lines of stdin, one after the other."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what vLLM prints is no answer
    for line in sys.stdin:
        surface, body = json.loads(line)
        try:
            answer = of_messages(body) if surface == "messages" else of_responses(body)
        except Exception as error:
            answer = {"error": str(error)[:500]}
        print(json.dumps(answer, default=plain), file=answers, flush=True)


def of_messages(body):
    """The chat that the Anthropic handler makes."""
    chat = AnthropicServingMessages.to_chat_completion_request(AnthropicMessagesRequest(**body))
    tools = None if chat.tools is None else [tool.model_dump() for tool in chat.tools]
    return {"messages": chat.messages, "tools": tools, "effort": chat.reasoning_effort}


def of_responses(body):
    """The chat that the Responses handler makes."""
    asked = ResponsesRequest(**body)
    messages = construct_input_messages(request_instructions=asked.instructions, request_input=asked.input)
    effort = None if asked.reasoning is None else asked.reasoning.effort
    return {"messages": messages, "tools": construct_tool_dicts(asked.tools, asked.tool_choice), "effort": effort}


def plain(value):
    """Models and pydantic's lazy iterators as JSON."""
    return value.model_dump() if hasattr(value, "model_dump") else list(value)


main()
