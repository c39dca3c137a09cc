"""A process that is stuck outside Python still says why it ends."""

import subprocess
import sys

STUCK = """
import os, signal, time
from dear.parallel.watchdog import watchdog

def handler(*_):
    raise SystemExit(3)

signal.signal(signal.SIGTERM, handler)
with watchdog("all stop", lambda: True, grace=0.2):
    me = os.getpid()
    os.system(f"exec 2>/dev/null; kill -TERM {me}; while kill -0 {me}; do sleep 0.1; done")  # in C while it lives
"""
WELL = STUCK.replace("    os.system", "    os.kill(me, signal.SIGTERM); time.sleep(600) #").replace("0.2)", "600)")


def end(code: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=600)
    return done.returncode, done.stderr


def test_a_stuck_process_ends_with_the_sentence() -> None:
    assert end(STUCK) == (2, "dear: all stop\n")


def test_a_process_that_handles_the_signal_ends_in_its_own_way() -> None:
    assert end(WELL) == (3, "")
