"""Decides how the engine's processes wait for one another in the tests: asleep, not spinning.

vLLM's processes wait for each other with os.sched_yield() in a loop (vLLM 0.32 distributed/utils.py). On two cores with
Linux 6.18 that kept every other process, even a sleeper whose timer had run out, off the CPU for up to 1.7 seconds at a
time: nothing could be timed beside it. Fifty microseconds of sleep change nothing else.
"""

import os
import time

os.sched_yield = lambda: time.sleep(50e-6)
