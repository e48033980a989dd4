"""Counting prompt tokens: exact by a tokenizer, by the engine, or a proved upper bound."""
