"""Ctrl-C at any moment after the interpreter has begun with us: exit 130, and not a word."""

import os
import signal
import subprocess
import sys
import time

import pytest

# From our first line on; what comes before is the interpreter's own.
BEGIN = """
import os, sys, threading, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests may have it ignored
import kvbudget.__main__ as entry
timer = threading.Timer({delay}, os.kill, (os.getpid(), signal.SIGINT))
timer.daemon = True  # a command that is over before is not kept for it
timer.start()
sys.argv = ["kvbudget", *{argv!r}]
sys.exit(entry.main())
"""


@pytest.mark.parametrize("argv", [["serve", "--embedded-engine", "--port", "0", "--admin-port", "0"], ["simulate"]])
def test_while_it_imports(argv: list[str]) -> None:
    for delay in (0.005, 0.03, 0.06, 0.1, 0.15):
        code = BEGIN.format(delay=delay, argv=argv)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
        assert "Traceback" not in done.stderr, (delay, done.stderr)
        assert "KeyboardInterrupt" not in done.stderr
        assert done.returncode in ((130, 0) if argv[0] == "serve" else (130, 2)), (delay, done)


def test_the_installed_command_goes_the_same_way() -> None:
    from importlib.metadata import entry_points

    [script] = [one for one in entry_points(group="console_scripts") if one.name == "kvbudget"]
    if script.value != "kvbudget.__main__:main":
        pyproject = os.path.join(os.path.dirname(__file__), "..", "..", "pyproject.toml")
        with open(pyproject, encoding="utf-8") as file:
            assert 'kvbudget = "kvbudget.__main__:main"' in file.read()


def test_as_a_process_of_its_own() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "kvbudget", "serve", "--embedded-engine", "--port", "0", "--admin-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    marks = f"/proc/{process.pid}/maps"
    while process.poll() is None:  # an extension that only we import has been mapped
        with open(marks, encoding="utf-8") as file:
            if "uvloop" in file.read() or "orjson" in file.read():
                break
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert "Traceback" not in err
    assert process.returncode in (130, 0)
