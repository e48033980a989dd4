"""Decides by which labels the gate's board chooses: gate process, its name of an engine, Prometheus's name of it."""

from typing import Final

GATE: Final = 'gate=~"$gate"'
ENGINE: Final = f'{GATE}, instance=~"$instance"'
VLLM: Final = 'instance=~"$engine"'
