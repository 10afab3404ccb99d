"""Runs the cells of a sweep side by side, a process each, on the cores or GPUs there are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from derivedata.store.faults import explain
from derivedata.trainers.cell import Cell

TRIES = 2


class Workers:
    """Processes that train cells.

    Args:
        runs: the sweep's folder.
        cells: what to train, in the order in which they start.
        gpus: device numbers, one a worker; empty on CPUs.
        count: processes at a time.
        threads: of each process.

    Attributes:
        steps: taken so far by cell name. done: rows written so far. failures: by cell, the last line it said.
    """

    def __init__(self, runs: Path, cells: Sequence[Cell], *, count: int, threads: int = 1, gpus: Sequence[int] = ()):
        self.runs, self.waiting, self.gpus = runs, deque(cells), list(gpus)
        self.count, self.threads = count, threads
        self.steps: dict[str, int] = {}
        self.done = 0
        self.failures: dict[str, str] = {}
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen] = set()
        self._stopped = False
        self._broken: list[BaseException] = []

    def run(self) -> None:
        """Until no cell is left. What has failed is in `failures`.

        Raises:
            UserError: processes cannot be started, or nothing can be written.
        """
        threads = [threading.Thread(target=self._work, args=(n,), daemon=True) for n in range(self.count)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                # In slices, so that Ctrl-C is seen.
                while thread.is_alive():
                    thread.join(0.2)
        finally:
            self._stop()
        for error in self._broken:
            raise explain(error, str(self.runs)) or error

    def _work(self, number: int) -> None:
        try:
            self._take_turns(number)
        except BaseException as error:
            # A thread has nobody to raise it to: `run` does, when the others have ended.
            self._broken.append(error)

    def _take_turns(self, number: int) -> None:
        while not self._stopped:
            with self._lock:
                if not self.waiting:
                    return
                cell = self.waiting.popleft()
            for attempt in range(TRIES):
                told = self._train(cell, number)
                if told is None or self._stopped:
                    self.failures.pop(cell.name, None)
                    break
                # Whatever ended it (the kernel when memory is short, an operator): once more, from its last fork.
                self.failures[cell.name] = told
                if attempt == 0:
                    self.steps.pop(cell.name, None)

    def _train(self, cell: Cell, number: int) -> str | None:
        """Train a cell in a process; None when it went well, else what it said last."""
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false"}
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = str(self.gpus[number % len(self.gpus)])
        command = [sys.executable, "-m", "derivedata.trainers.cell", str(self.runs), cell.name]
        log = self.runs / "logs" / f"{cell.name}.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("w") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=environment, text=True)
            with self._lock:
                self._running.add(process)
            for line in process.stdout:
                self._hear(cell.name, line)
            code = process.wait()
        with self._lock:
            self._running.discard(process)
        if code == 0:
            return None
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        return said[-1] if said and code > 0 else f"ended by signal {-code}" if code < 0 else f"exit code {code}"

    def _hear(self, name: str, line: str) -> None:
        try:
            told = json.loads(line)
        except ValueError:
            return
        with self._lock:
            self.steps[name] = self.steps.get(name, 0) + told.get("steps", 0)
            self.done += bool(told.get("run"))

    def _stop(self) -> None:
        self._stopped = True
        with self._lock:
            running = list(self._running)
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def machine(count: int | None, device: str | None) -> tuple[int, int, list[int]]:
    """Processes at a time, threads of each, and the GPUs they use: one process a GPU, or one a core."""
    import torch

    gpus = list(range(torch.cuda.device_count())) if device != "cpu" and torch.cuda.is_available() else []
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = count or len(gpus) or cores
    return count, max(1, cores // count) if gpus else 1, gpus
