"""A sentence from a process whose main thread cannot speak: it waits inside CUDA for another process that has died.

torchrun sends SIGTERM to the others. Python handles a signal in its main thread, between two instructions, so a thread
that is stuck in a collective never does, until torchrun kills it without a word.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def watchdog(sentence: str, reports: Callable[[], bool], grace: float = 5.0) -> Iterator[threading.Event]:
    """Inside, a SIGTERM that is not handled within `grace` seconds ends the process with exit code 2.

    The signal's handler sets the event that this yields. The sentence is printed if `reports` says so.
    """
    handled = threading.Event()
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)  # written by C, whatever Python does

    def watch() -> None:
        while number := os.read(read, 1):
            if number[0] == signal.SIGTERM and not handled.wait(grace):
                if reports():
                    print(f"dear: {sentence}", file=sys.__stderr__, flush=True)
                os._exit(2)

    thread = threading.Thread(target=watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield handled
    finally:
        handled.set()
        signal.set_wakeup_fd(before)
        os.close(write)  # ends the thread
        thread.join()
        os.close(read)
