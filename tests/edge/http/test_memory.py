import subprocess
import sys

# In a process of its own: it holds for the whole process. Many large pieces come and go, and page faults are counted.
FAULTS = """
import resource, sys
from kvbudget.edge.http.memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    print(-1)
    raise SystemExit
for _ in range(20):
    pieces = [b"x" * 1_000_000 for _ in range(4)]
    del pieces
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(200):
    pieces = [bytes(1_000_000 + i) + b"x" for i in range(4)]
    del pieces
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_of_large_bodies_is_not_got_anew_each_time() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTS, "keep"], capture_output=True, text=True, check=True)
    faults = int(done.stdout)
    assert faults < 2_000  # -1 where the C library is another one; page by page they are 200 x 4 x 244 and more
