#!/bin/sh
MODEL=docs/examples/llama-3.1-8b
export VLLM_USE_V1=1
exec vllm serve "$MODEL" \
  --max-model-len 16k \
  --tensor-parallel-size "${TP:-1}" \
  --port 8000
