"""Runs Datatrove pipelines for the commands, with our own idea of progress: only the ledger says what is done.

    execute(steps, tasks=8, workers=4, logging_dir="out/logs/run", cluster=Cluster(executor="slurm", partition="gpu"))

is the one call; without a cluster the tasks run on this machine. What a task left is a file under the logging folder:
`finished/RANK` or `failed/RANK.json`, which says why.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from copy import deepcopy
from functools import cache
from typing import IO, TYPE_CHECKING, Any

from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.logging import logger
from datatrove.utils.stats import PipelineStats

from derivedata.errors import UserError
from derivedata.pipelines.leaving import leave_on_signals, leaving, leaving_on_signals
from derivedata.store.paths import Folder

if TYPE_CHECKING:
    from derivedata.pipelines.cluster import Cluster
    from derivedata.pipelines.job_serving import JobServing

_PR_SET_PDEATHSIG = 1
FINISHED, FAILED = "finished", "failed"
_ATTEMPT = re.compile(r"/attempt-\d+$")


class TaskFailed(Exception):
    """At least one task has failed, and said why in its file."""


@cache
def _silence() -> IO[str]:
    # Never closed: Datatrove leaves its logger pointing at whatever stderr is while a task runs.
    return open(os.devnull, "w")


class LocalExecutor(LocalPipelineExecutor):
    """Datatrove's local executor with other processes and a quiet terminal.

    Datatrove's own starts a manager process even for one worker, and neither that nor its workers end when the command
    is killed. Here one worker is this process, and further ones die with it. The log goes to its files alone.

    Args:
        ranks: the tasks to run here, of all `tasks`; None: all.
        go_on: when a task fails, run the others all the same.
        other arguments: as Datatrove's.
    """

    def __init__(self, *args: Any, ranks: Sequence[int] | None = None, go_on: bool = False, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.ranks = list(range(self.tasks)) if ranks is None else list(ranks)
        self.go_on = go_on

    def run(self) -> PipelineStats:
        """Run the tasks. When one fails, or on Ctrl-C, the others stop and keep what is finished. Raises its error."""
        self.save_executor_as_json()
        if self.workers == 1:
            stats = self._one_after_the_other()
        else:
            stats = self._side_by_side()
        total = sum(stats, start=PipelineStats())
        with self.logging_dir.open("stats.json", "wt") as file:
            total.save_to_disk(file)
        return total

    def _one_after_the_other(self) -> list[PipelineStats]:
        steps, stats, failure = self.pipeline, [], None
        for rank in self.ranks:
            if leaving():
                break
            self.pipeline = deepcopy(steps)
            try:
                stats.append(self._run_for_rank(rank))
            except Exception as error:
                if not self.go_on:
                    raise
                failure = error
        if failure is not None:
            raise TaskFailed from failure
        return stats

    def _side_by_side(self) -> list[PipelineStats]:
        context, stats, failure = multiprocessing.get_context("spawn"), [], None
        with ProcessPoolExecutor(
            self.workers, mp_context=context, initializer=_become_worker, initargs=(os.getpid(),)
        ) as pool:
            ranks = [pool.submit(_in_worker, self, rank) for rank in self.ranks]
            # A pool begins to watch a process only when something comes in after it: without this the last one could be
            # killed and nobody would see it.
            pool.submit(int)
            try:
                for rank in as_completed(ranks):
                    try:
                        stats.append(rank.result())
                    except Exception as error:
                        if not self.go_on:
                            raise
                        failure = error
            except BaseException as error:
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in multiprocessing.active_children():
                    worker.terminate()  # a task hears SIGTERM, keeps what is finished, and ends
                if isinstance(error, BrokenProcessPool):
                    raise UserError(
                        "a process of a task was killed (for memory?)",
                        remedy="what is finished is kept: run the same command again",
                    ) from error
                raise
        if failure is not None:
            raise TaskFailed from failure
        return stats

    def _run_for_rank(self, rank: int, local_rank: int = 0, node_rank: int = -1) -> PipelineStats:
        if leaving():
            return PipelineStats()
        try:
            with contextlib.redirect_stderr(_silence()):
                stats = super()._run_for_rank(rank, local_rank, node_rank)
        except Exception as error:
            self._leave(f"{FAILED}/{rank:05d}.json", json.dumps(told_failure(rank, error)))
            raise
        if not leaving():
            self._leave(f"{FINISHED}/{rank:05d}", "")
        return stats

    def _leave(self, path: str, text: str) -> None:
        # A full disk is told by the error itself.
        with contextlib.suppress(OSError), self.logging_dir.open(path, "wt") as file:
            file.write(text)


def told_failure(rank: int, error: Exception) -> dict[str, Any]:
    """A failure as its file says it."""
    expected = isinstance(error, UserError)
    line = error.line if expected else f"{type(error).__name__}: {error}"
    return {"rank": rank, "error": " ".join(line.split())[:2_000], "expected": expected, "when": time.time()}


def _become_worker(parent: int) -> None:
    """Set up a worker process: it ends when the command's does, however that ends, and leaves the terminal alone."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    # Ctrl-C reaches the whole terminal; the command decides what becomes of its tasks, and tells them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    leave_on_signals()
    signal.signal(signal.SIGTERM, _interrupt)
    os.dup2(_silence().fileno(), 2)


def _in_worker(executor: LocalExecutor, rank: int) -> PipelineStats:
    try:
        return executor._run_for_rank(rank)
    except KeyboardInterrupt:
        # What is finished is kept by now. To wait for more work would be for ever: nobody gives any to a broken pool.
        os._exit(130)


def _interrupt(number: int, frame: object) -> None:
    # A broken pool and we ourselves both tell a worker: the second must not disturb what the first has set going.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def run_tasks(
    steps: Sequence[PipelineStep],
    *,
    ranks: Sequence[int] | None = None,
    tasks: int,
    workers: int,
    logging_dir: str,
    go_on: bool = False,
) -> None:
    """Run some of `tasks` tasks on this machine; arguments as of `LocalExecutor`."""
    logger.remove()
    # Datatrove's completion markers would skip a task whose share of the work has changed.
    LocalExecutor(
        list(steps),
        tasks=tasks,
        workers=max(1, min(workers, tasks if ranks is None else len(ranks))),
        logging_dir=logging_dir,
        skip_completed=False,
        ranks=ranks,
        go_on=go_on,
    ).run()


def run_locally(steps: Sequence[PipelineStep], *, tasks: int, workers: int, logging_dir: str) -> None:
    """Run steps as `tasks` tasks, `workers` at a time; the first failing task's error is raised."""
    run_tasks(steps, tasks=tasks, workers=workers, logging_dir=logging_dir)


def execute(
    steps: Sequence[PipelineStep],
    *,
    tasks: int,
    workers: int,
    logging_dir: str,
    cluster: Cluster | None = None,
    serving: JobServing | None = None,
) -> None:
    """Run steps as `tasks` tasks, wherever `cluster` says, and wait for their end.

    Args:
        steps: Datatrove steps, run one after the other in each task.
        tasks: how many tasks the work is cut into.
        workers: tasks at a time.
        logging_dir: folder or URL for the logs; on a cluster all machines must see it.
        cluster: where to run; None: here.
        serving: what the steps need of a model; each job of a cluster comes to it by itself. Here they have it already.

    Raises:
        UserError: a task failed (on a cluster: after it was tried again), or the cluster can't run it.
        KeyboardInterrupt: this process was told to leave, and what was in flight is finished.
    """
    if cluster is None or cluster.is_local:
        # A step that talks to a server knows how to leave in good order; others are interrupted at once.
        patient = any(hasattr(step, "endpoint_file") for step in steps)
        with leaving_on_signals() if patient else contextlib.nullcontext():
            run_locally(steps, tasks=tasks, workers=workers, logging_dir=logging_dir)
    else:
        from derivedata.pipelines.cluster_run import run_on_cluster

        run_on_cluster(steps, tasks=tasks, workers=workers, logging_dir=logging_dir, cluster=cluster, serving=serving)


def read_failures(logs: Folder, run_id: str) -> list[dict[str, Any]]:
    """The tasks of a run that failed and have not finished since: rank, step, error, when."""
    finished: set[tuple[str, str]] = set()
    failed: dict[tuple[str, str], str] = {}
    for path in logs.names(f"{run_id}/"):
        folder, _, name = path.rpartition("/")
        place, _, kind = folder.rpartition("/")
        step = _ATTEMPT.sub("", place.removeprefix(f"{run_id}/"))
        if kind == FINISHED:
            finished.add((step, name))
        elif kind == FAILED:
            failed[step, name.removesuffix(".json")] = path  # of several attempts the last one
    found = []
    for (step, name), path in sorted(failed.items()):
        if (step, name) not in finished:
            with contextlib.suppress(FileNotFoundError, ValueError):
                found.append({"step": step, **json.loads(logs.read(path))})
    return found
