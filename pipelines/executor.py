"""Runs Datatrove pipelines for the commands, with our own idea of progress: only the ledger says what is done."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from copy import deepcopy
from functools import cache
from typing import IO

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.logging import logger
from datatrove.utils.stats import PipelineStats

_PR_SET_PDEATHSIG = 1


@cache
def _silence() -> IO[str]:
    # Never closed: Datatrove leaves its logger pointing at whatever stderr is while a task runs.
    return open(os.devnull, "w")


class LocalExecutor(LocalPipelineExecutor):
    """Datatrove's local executor with other processes and a quiet terminal.

    Datatrove's own starts a manager process even for one worker, and neither that nor its workers end when the command
    is killed. Here one worker is this process, and further ones die with it. The log goes to its files alone.
    """

    def run(self) -> PipelineStats:
        """Run all tasks. When one fails, or on Ctrl-C, the others stop and keep what is finished. Raises its error."""
        self.save_executor_as_json()
        if self.workers == 1:
            steps, stats = self.pipeline, []
            for rank in range(self.tasks):
                self.pipeline = deepcopy(steps)
                stats.append(self._run_for_rank(rank))
        else:
            context = multiprocessing.get_context("spawn")
            with ProcessPoolExecutor(
                self.workers, mp_context=context, initializer=_become_worker, initargs=(os.getpid(),)
            ) as pool:
                ranks = [pool.submit(self._run_for_rank, rank) for rank in range(self.tasks)]
                try:
                    stats = [rank.result() for rank in as_completed(ranks)]
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    for worker in multiprocessing.active_children():
                        worker.terminate()  # a task hears SIGTERM, keeps what is finished, and ends
                    raise
        total = sum(stats, start=PipelineStats())
        with self.logging_dir.open("stats.json", "wt") as file:
            total.save_to_disk(file)
        return total

    def _run_for_rank(self, rank: int, local_rank: int = 0, node_rank: int = -1) -> PipelineStats:
        with contextlib.redirect_stderr(_silence()):
            return super()._run_for_rank(rank, local_rank, node_rank)


def _become_worker(parent: int) -> None:
    """Set up a worker process: it ends when the command's does, however that ends, and leaves the terminal alone."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    # Ctrl-C reaches the whole terminal; the command decides what becomes of its tasks, and tells them by SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _interrupt)
    os.dup2(_silence().fileno(), 2)


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def run_locally(steps: Sequence[PipelineStep], *, tasks: int, workers: int, logging_dir: str) -> None:
    """Run steps as `tasks` tasks, `workers` at a time; the first failing task's error is raised."""
    logger.remove()
    # Datatrove's completion markers would skip a task whose share of the work has changed.
    LocalExecutor(
        list(steps), tasks=tasks, workers=min(workers, tasks), logging_dir=logging_dir, skip_completed=False
    ).run()
