"""A process that is stuck outside Python still says why it ends."""

import signal
import subprocess
import sys
import time

STUCK = """
import hashlib, signal, sys
from dear.parallel.watchdog import watchdog

def handler(*_):
    raise SystemExit(3)

signal.signal(signal.SIGTERM, handler)
with watchdog("all stop", lambda: True, grace=0.2):
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # minutes in C, without the lock of Python
"""
WELL = STUCK.replace("    hashlib", "    import time; time.sleep(60) #")


def end(code: str) -> tuple[int, str]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


def test_a_stuck_process_ends_with_the_sentence() -> None:
    assert end(STUCK) == (2, "dear: all stop\n")


def test_a_process_that_handles_the_signal_ends_in_its_own_way() -> None:
    assert end(WELL) == (3, "")
