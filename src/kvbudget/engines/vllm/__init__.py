"""vLLM 0.32. Paths in comments of this package are relative to the `vllm` package of version 0.32.0."""
