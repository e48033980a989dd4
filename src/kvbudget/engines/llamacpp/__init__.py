"""llama.cpp (llama-server). Paths in comments of this package are relative to its repository, as of build b10000."""
