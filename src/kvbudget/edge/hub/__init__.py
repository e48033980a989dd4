"""Model files: folders, config.json, safetensors headers, GGUF, and the hub; weights are never loaded."""
