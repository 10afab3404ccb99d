"""How fast tokens come: by the server's own counter where there is one, by finished requests elsewhere.

Requests take a minute and run side by side, so by what is finished the first minute looks far too slow.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

OVER_S = 30.0  # the rate is that of the last half minute
EVERY_S = 1.0  # the server is asked no more often


class Pace:
    """New tokens a second. `hear` is given a counter of the server's, if it has one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock, self._lock = clock, threading.Lock()
        self._counter: Callable[[], int | None] | None = None
        self._seen: deque[tuple[float, int]] = deque()

    def hear(self, counter: Callable[[], int | None]) -> None:
        """Take the counter of tokens that the server has generated since its start; None: it does not say now."""
        with self._lock:
            self._counter = counter
            self._seen.clear()

    def tokens_per_second(self, seen: Mapping[str, Any]) -> float | None:
        """The rate now; None while nothing is known of it.

        Args:
            seen: what the ranks have counted, see `read_progress`.
        """
        with self._lock:
            if self._counter is None:
                return seen.get("generated", 0) / max(1e-3, seen["written"] - seen["started"])
            self._ask()
            if len(self._seen) < 2:
                return None
            (began, first), (now, last) = self._seen[0], self._seen[-1]
            return (last - first) / (now - began)

    def _ask(self) -> None:
        now = self._clock()
        if self._seen and now - self._seen[-1][0] < EVERY_S:
            return
        count = self._counter()
        if count is None:
            return
        if self._seen and count < self._seen[-1][1]:
            self._seen.clear()  # the server was started again
        while len(self._seen) > 1 and now - self._seen[1][0] >= OVER_S:
            self._seen.popleft()
        # Until the first token everything is prefill and start: no measure of what follows.
        while self._seen and count == self._seen[0][1]:
            self._seen.popleft()
        self._seen.append((now, count))


def in_words(rate: float | None) -> str:
    """A rate as part of a line of progress; nothing while it is unknown."""
    return "" if rate is None else f", {rate:,.0f} new tokens/s"
