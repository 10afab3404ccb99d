"""Progress of long work: one line that renews itself on a terminal, a plain line every quarter minute in a log."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True)
class State:
    """How far the work is: `done` of `total` (None: unknown), words about the rest, and how fast it goes now."""

    done: float
    total: float | None
    words: str = ""
    speed: float | None = None  # done a second; None: as far as it came since the beginning


class Progress:
    """Shows what `look` tells, about once a second, while the block runs.

        with Progress("paraphrasing", look):
            ...

    Args:
        title: what is being done.
        look: gives the state; called from a thread of its own. None: not known yet.
    """

    def __init__(self, title: str, look: Callable[[], State | None]):
        self.title, self.look = title, look
        self.stream = sys.stderr
        self.terminal = self.stream.isatty()
        self._stop = threading.Event()
        self._began = time.monotonic()
        self._first: float | None = None
        self._thread = threading.Thread(target=self._show, daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._print(last=True)

    def _show(self) -> None:
        while not self._stop.wait(0.5 if self.terminal else 15.0):
            self._print()

    def _print(self, last: bool = False) -> None:
        line = f"{self.title}: {self._line()}"
        if self.terminal:
            width = shutil.get_terminal_size().columns
            self.stream.write(f"\r\x1b[K{line[: width - 1]}" + ("\n" if last else ""))
        else:
            self.stream.write(f"{line}\n")
        self.stream.flush()

    def _line(self) -> str:
        seconds = time.monotonic() - self._began
        state = self.look()
        if state is None:
            return f"{clock(seconds)}"
        if self._first is None:
            self._first = state.done
        parts = [clock(seconds)]
        if state.total:
            share = min(1.0, state.done / state.total)
            parts.insert(0, f"{share:4.0%}")
            speed = state.speed if state.speed is not None else (state.done - self._first) / max(seconds, 1e-9)
            if speed > 0 and share < 1:
                parts.append(f"{clock((state.total - state.done) / speed)} left")
        return "  ".join([*parts, state.words]) if state.words else "  ".join(parts)


def clock(seconds: float) -> str:
    """A duration as people read it: 42 s, 3:05, 2:11:00."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    minutes, rest = divmod(seconds, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02d}"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
