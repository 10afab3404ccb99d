"""Writers that take turns, one file operation at a time, and die where a schedule says so."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from derivedata.store.paths import Folder

# What touches the file system; each is one step.
OPERATIONS = ("create", "create_from", "replace", "remove", "remove_many", "remove_tree", "read", "open", "exists")
OPERATIONS += ("list", "names")


class Killed(BaseException):
    """The process is gone; no `except Exception` of the code may notice."""


class SteppedFolder(Folder):
    """A folder whose every operation waits for its writer's turn."""

    def wait_with(self, turn: Callable[[], None]) -> SteppedFolder:
        """Wait with `turn` before each operation of the thread that calls this."""
        self._turn, self._inside, self._thread = turn, False, threading.current_thread()
        return self

    def _step(self, name: str, arguments: Sequence[Any], options: dict) -> Any:
        # Threads that read for the writer are part of its step; one that waited for a turn of its own would wait on
        # when the writer dies.
        outer = not self._inside and threading.current_thread() is self._thread
        if outer:
            self._turn()
        self._inside = True
        try:
            return getattr(Folder, name)(self, *arguments, **options)
        finally:
            if outer:
                self._inside = False


def _stepped(name: str):
    return lambda self, *arguments, **options: self._step(name, arguments, options)


for _name in OPERATIONS:
    setattr(SteppedFolder, _name, _stepped(_name))


class Writer:
    """A thread that runs `job(folder)` in steps; `step()` lets it do one, `kill()` ends it before its next."""

    def __init__(self, place: str, job: Callable[[Folder], None]) -> None:
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._killed = False
        self.finished = False
        self.fault: BaseException | None = None
        self._job, self._place = job, place
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._done.acquire()  # it waits before its first operation

    def step(self) -> None:
        if not self.finished:
            self._go.release()
            self._done.acquire()

    def kill(self) -> None:
        self._killed = True
        self.step()

    def _wait(self) -> None:
        if self._killed:
            raise Killed
        self._done.release()
        self._go.acquire()
        if self._killed:
            raise Killed

    def _run(self) -> None:
        try:
            self._job(SteppedFolder(self._place).wait_with(self._wait))
        except Killed:
            pass
        except BaseException as error:
            self.fault = error
        self.finished = True
        self._done.release()
