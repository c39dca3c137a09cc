"""A process that is killed in the middle of training, always at the same point."""

import os
import signal
import subprocess
import sys

from dear.data.world import tasks

_PROGRAM = """
import os, signal, sys
from dear.cli import main
from dear.data.world import tasks
from dear.methods.dear import Dear

loss, steps = Dear.loss, []

def deadly(self, *given):
    steps.append(given)
    if len(steps) == int(sys.argv[1]):
        os.killpg(os.getpid(), signal.SIGKILL)
    return loss(self, *given)

Dear.loss, tasks.TEST = deadly, int(sys.argv[2])
main(sys.argv[3:])
"""


def dies_at_a_step(step: int, *arguments: str) -> None:
    """Runs the command in a process that is killed, with its workers, in that step of training."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(step), str(tasks.TEST), *arguments],
        start_new_session=True, check=False, capture_output=True, text=True, timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
