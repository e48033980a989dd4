"""From a request body to an Ask: see `edge.surfaces`, which has a module for each API."""

from kvbudget.edge.openai.prompts import ChatPrompt, OpaquePrompt, Prompt, TextPrompt, TokenPrompt
from kvbudget.edge.surfaces.ask import Ask, Surface
from kvbudget.edge.surfaces.table import SURFACES, parse_ask

__all__ = ["SURFACES", "Ask", "ChatPrompt", "OpaquePrompt", "Prompt", "Surface", "TextPrompt", "TokenPrompt",
           "parse_ask"]  # fmt: skip
