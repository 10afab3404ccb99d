"""A pool of verifier processes that survives hostile answers: each has a deadline, a CPU limit and a memory limit.

One thread of the main process talks to all workers. A worker over its deadline is killed and replaced at once; the
answer it was at becomes `verifier_timeout`, and the answers that waited behind it go to others: no other verdict is
touched. Nothing is left running however the main process ends (see derivedata.problems.worker).
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field

from derivedata.errors import UserError
from derivedata.problems.worker import HEADER

# A worker is handed this many answers ahead, so that it never waits for our thread.
_AHEAD = 4
_START_SECONDS = 300
_MAX_STARTS = 4
_TIME_SIGNALS = (-signal.SIGXCPU, -signal.SIGALRM)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerLimits:
    """What one answer may cost, and how many are checked at a time."""

    workers: int = 0  # processes; 0: one for each CPU that this process may use
    deadline: float = 3.0  # seconds of wall clock for an answer
    memory: int = 1 << 30  # bytes of address space for an answer, beyond what the worker has imported

    def __post_init__(self):
        if self.workers < 0:
            raise UserError("the number of verifier workers can't be negative", value=self.workers)
        if not self.deadline > 0:
            raise UserError("the verifier's deadline must be positive", value=self.deadline)
        if self.memory < 64 << 20:
            raise UserError("a verifier worker needs at least 64 MiB", value=self.memory)

    @property
    def count(self) -> int:
        """The number of workers that this means on this machine."""
        return self.workers or len(os.sched_getaffinity(0))


@dataclass(slots=True)
class _Job:
    number: int
    payload: bytes
    future: concurrent.futures.Future
    deaths: int = 0


@dataclass(slots=True, eq=False)
class _Worker:
    number: int
    connection: socket.socket
    jobs: deque[_Job] = field(default_factory=deque)
    started: float = 0.0
    received: bytearray = field(default_factory=bytearray)
    unsent: bytearray = field(default_factory=bytearray)
    killed: bool = False


class WorkerPool:
    """Checks answers in other processes. Start is lazy; use as a context manager, or call `close`.

    Args:
        limits: what an answer may cost.
        plugin: `module:function` of another verifier, or None.
        math_verify: whether the workers shall import math-verify.
    """

    def __init__(self, limits: WorkerLimits, *, plugin: str | None = None, math_verify: bool = True):
        self.limits, self.plugin, self.math_verify = limits, plugin, math_verify
        self._lock = threading.Lock()
        self._waiting: deque[_Job] = deque()
        self._workers: dict[int, _Worker] = {}
        self._numbers = 0
        self._thread: threading.Thread | None = None
        self._started: concurrent.futures.Future = concurrent.futures.Future()
        self._closing = False
        self._starts = 0
        self.killed = 0

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def start(self) -> None:
        """Start the processes and wait until they have imported what they need.

        Raises:
            UserError: the plug-in or math-verify can't be imported.
        """
        if self._started.done():
            self._started.result()
        with self._lock:
            if self._closing:
                raise UserError("the verifier was closed already")
            if self._thread is None:
                self._wake_in, self._wake_out = socket.socketpair()
                self._wake_out.setblocking(False)
                # The processes are spawned by this thread: the kernel ends them when it ends.
                self._thread = threading.Thread(target=self._run, name="derivedata-verifier", daemon=True)
                self._thread.start()
        self._started.result()

    @property
    def must_start(self) -> bool:
        """Whether `submit` would have to wait for imports first."""
        return not self._started.done()

    def submit(self, kind: str, golds: list[str], text: str) -> concurrent.futures.Future:
        """Have an answer checked; the future gives (verdict, answer or None, detail or None).

        Args:
            kind: "answer" (an extracted answer), "text" (math-verify searches it itself), "plugin".
            golds: the gold answers; one that fits is enough.
            text: the answer or text.
        """
        self.start()
        future: concurrent.futures.Future = concurrent.futures.Future()
        with self._lock:
            self._numbers += 1
            payload = json.dumps({"id": self._numbers, "kind": kind, "golds": golds, "text": text}).encode()
            self._waiting.append(_Job(self._numbers, HEADER.pack(len(payload)) + payload, future))
        self._wake()
        return future

    def close(self) -> None:
        """End all processes. Answers that are not checked yet fail."""
        with self._lock:
            self._closing = True
        if self._thread is not None:
            self._wake()
            self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_out.send(b".")

    # What follows runs in the pool's own thread.

    def _run(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._wake_in.setblocking(False)
        try:
            self._start_forker()
            self._started.set_result(None)
            while not self._closing:
                self._turn()
        except UserError as error:
            self._fail(error)
        finally:
            self._control.close()
            for worker in self._workers.values():
                worker.connection.close()
            self._forker.wait()
            self._selector.close()
            self._fail(UserError("the verifier was closed before it had checked every answer"))

    def _fail(self, error: UserError) -> None:
        if not self._started.done():
            self._started.set_exception(error)
        with self._lock:
            self._closing = True
            jobs = [*self._waiting, *(job for worker in self._workers.values() for job in worker.jobs)]
            self._waiting.clear()
            self._workers.clear()
        for job in jobs:
            if not job.future.done():
                job.future.set_exception(error)

    def _start_forker(self) -> None:
        self._starts += 1
        if self._starts > _MAX_STARTS:
            raise UserError("the verifier's processes keep dying", remedy="look for what ends them (out of memory?)")
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {
            "parent": os.getpid(),
            "deadline": self.limits.deadline,
            "memory": self.limits.memory,
            "plugin": self.plugin,
            "path": sys.path,
            "math_verify": self.math_verify,
        }
        with theirs:
            self._forker = subprocess.Popen(
                # Without the current folder on its path: a file named like a module of ours must not be run.
                [sys.executable, "-P", "-m", "derivedata.problems.worker", str(theirs.fileno()), json.dumps(settings)],
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._control.settimeout(_START_SECONDS)
        try:
            message = self._control.recv(65_536)
        except TimeoutError:
            self._forker.kill()
            raise UserError(f"the verifier's processes did not start within {_START_SECONDS} s") from None
        outcome = json.loads(message) if message else {"failed": "the process ended while it was importing"}
        if "failed" in outcome:
            if self.plugin:
                remedy = "check that the module can be imported from here"
            else:
                remedy = "install it with `pip install 'derivedata[math]'`"
            raise UserError(
                "the verifier can't be loaded",
                where=self.plugin or "math-verify",
                value=outcome["failed"],
                remedy=remedy,
            )
        self._selector.register(self._control, selectors.EVENT_READ, "control")
        for _ in range(self.limits.count):
            self._fork()

    def _fork(self) -> None:
        self._numbers += 1
        ours, theirs = socket.socketpair()
        # A forker that has died is noticed when its socket closes, not here.
        with theirs, contextlib.suppress(OSError):
            socket.send_fds(self._control, [json.dumps({"fork": self._numbers}).encode()], [theirs.fileno()])
        ours.setblocking(False)
        worker = self._workers[self._numbers] = _Worker(self._numbers, ours)
        self._selector.register(ours, selectors.EVENT_READ, worker)

    def _turn(self) -> None:
        now = time.monotonic()
        busy = [worker.started for worker in self._workers.values() if worker.jobs and not worker.killed]
        timeout = max(0.0, min(busy) + self.limits.deadline - now) if busy else None
        for key, events in self._selector.select(timeout):
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._wake_in.recv(65_536)
            elif key.data == "control":
                self._hear_forker()
            # An event before this one may have shown that the worker is gone.
            elif self._workers.get(key.data.number) is key.data:
                if events & selectors.EVENT_READ:
                    self._read(key.data)
                if events & selectors.EVENT_WRITE:
                    self._write(key.data)
        now = time.monotonic()
        for worker in list(self._workers.values()):
            if worker.jobs and not worker.killed and now - worker.started >= self.limits.deadline:
                self._read(worker)
                if worker.jobs and now - worker.started >= self.limits.deadline:
                    self._kill(worker)
        self._hand_out()

    def _hear_forker(self) -> None:
        message = self._control.recv(65_536)
        if message:
            order = json.loads(message)
            self._ended(self._workers.get(order["ended"]), order["status"])
            return
        # The forker itself was killed, and its workers with it: begin again with what they had in hand.
        self._selector.unregister(self._control)
        self._control.close()
        self._forker.wait()
        for worker in list(self._workers.values()):
            self._drop(worker)
        self._start_forker()

    def _read(self, worker: _Worker) -> None:
        try:
            part = worker.connection.recv(1 << 20)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        if not part:
            # It has ended; the forker will say how. Until then its answers wait.
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(worker.connection)
            worker.killed = True
            return
        worker.received += part
        while len(worker.received) >= HEADER.size:
            (size,) = HEADER.unpack_from(worker.received)
            if len(worker.received) < HEADER.size + size:
                break
            _, verdict, answer, detail = json.loads(worker.received[HEADER.size : HEADER.size + size])
            del worker.received[: HEADER.size + size]
            job = worker.jobs.popleft()
            worker.started = time.monotonic()
            self._resolve(job, verdict, answer, detail)

    def _write(self, worker: _Worker) -> None:
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            sent = worker.connection.send(worker.unsent)
            del worker.unsent[:sent]
        if not worker.killed:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if worker.unsent else 0)
            self._selector.modify(worker.connection, wanted, worker)

    def _kill(self, worker: _Worker) -> None:
        with contextlib.suppress(OSError):
            self._control.send(json.dumps({"kill": worker.number}).encode())
        self.killed += 1
        self._resolve(worker.jobs.popleft(), "verifier_timeout", None, f"no verdict within {self.limits.deadline:g} s")
        self._drop(worker)
        self._fork()

    def _drop(self, worker: _Worker) -> None:
        """Forget a worker and put its answers back to the front of the queue."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(worker.connection)
        worker.connection.close()
        del self._workers[worker.number]
        with self._lock:
            self._waiting.extendleft(reversed(worker.jobs))

    def _ended(self, worker: _Worker | None, status: int) -> None:
        """A worker has ended by itself (one that we killed is forgotten already)."""
        if worker is None:
            return
        if worker.jobs and status != 0:
            job = worker.jobs[0]
            job.deaths += 1
            if status in _TIME_SIGNALS:
                self._resolve(worker.jobs.popleft(), "verifier_timeout", None, "CPU limit")
            elif job.deaths > 1:
                how = signal.Signals(-status).name if status < 0 else f"exit code {status}"
                self._resolve(worker.jobs.popleft(), "verifier_error", None, f"the worker died on it twice ({how})")
        self._drop(worker)
        self._fork()

    def _resolve(self, job: _Job, verdict: str, answer: str | None, detail: str | None) -> None:
        if not job.future.cancelled():
            with contextlib.suppress(concurrent.futures.InvalidStateError):
                job.future.set_result((verdict, answer, detail))

    def _hand_out(self) -> None:
        with self._lock:
            if not self._waiting:
                return
            free = [worker for worker in self._workers.values() if not worker.killed]
            # Near the end nobody hoards: an answer behind a hostile one would wait for its deadline.
            ahead = _AHEAD if len(self._waiting) > 2 * _AHEAD * len(free) else 1
            handed = []
            for depth in range(1, ahead + 1):
                for worker in free:
                    if len(worker.jobs) < depth and self._waiting:
                        job = self._waiting.popleft()
                        if job.future.cancelled():
                            continue
                        if not worker.jobs:
                            worker.started = time.monotonic()
                        worker.jobs.append(job)
                        worker.unsent += job.payload
                        handed.append(worker)
        for worker in {id(worker): worker for worker in handed}.values():
            self._write(worker)
