"""Leaving in good order: on SIGTERM or SIGUSR1 a task asks for nothing new, finishes what is in flight, and commits.

A batch system announces the end of a job by such a signal and kills it a while later. Nothing depends on the signal: a
job that is killed outright loses what was in flight and at most one journal segment.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

GRACE_S = 20.0  # for what is in flight; a batch system gives about half a minute
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

_leaving = threading.Event()


def leaving() -> bool:
    """Whether this process was told to leave: ask for nothing new."""
    return _leaving.is_set()


def _too_late() -> None:
    if _leaving.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


def leave_on_signals(grace: float = GRACE_S) -> None:
    """From now on SIGTERM and SIGUSR1 mean: leave within `grace` seconds; their end, or a SIGTERM then, means now.

    To be called in a process's main thread. Processes that this one has started by `multiprocessing` are told too.
    """

    def told(number: int, frame: object) -> None:
        if _leaving.is_set():
            if number == signal.SIGTERM:
                raise KeyboardInterrupt
            return  # a batch system may tell each process, as we do
        _leaving.set()
        for child in multiprocessing.active_children():
            with suppress(ProcessLookupError, TypeError):
                os.kill(child.pid, signal.SIGUSR1)
        late = threading.Timer(grace, _too_late)
        late.daemon = True
        late.start()

    for number in SIGNALS:
        signal.signal(number, told)


@contextmanager
def leaving_on_signals(grace: float = GRACE_S) -> Iterator[None]:
    """While the block runs, SIGTERM and SIGUSR1 mean to leave. When it ends after one, that is a KeyboardInterrupt."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only a main thread hears signals
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    leave_on_signals(grace)
    try:
        yield
        if leaving():
            raise KeyboardInterrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _leaving.clear()
