"""Model files: folders, config.json and safetensors headers; nothing is fetched, weights are never loaded."""
