"""kvbudget: one accounting for the KV cache of self-hosted LLM servers."""

__version__ = "0.1.0"
