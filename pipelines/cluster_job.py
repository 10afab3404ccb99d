"""One job of a cluster: some of the tasks of a command, and the model server that they share.

`JobStep` is what Slurm and Ray run, as a Datatrove step whose rank is the number of the job. It starts a server where
the steps need one, runs its tasks, and leaves one file a task under the logging folder: `finished/` or `failed/`.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from derivedata.pipelines.executor import FAILED, TaskFailed, run_tasks, told_failure
from derivedata.pipelines.job_serving import JobServing
from derivedata.pipelines.leaving import leave_on_signals, leaving
from derivedata.pipelines.serving import ENDPOINT
from derivedata.store.paths import Folder
from derivedata.store.private import private_folder


class JobStep(PipelineStep):
    """Runs tasks [job * tasks_per_job, ...) of `tasks`, in processes of its own where they are several."""

    name = "Job"
    type = "🧺 - JOB"

    def __init__(
        self,
        *,
        steps: Sequence[PipelineStep],
        tasks: int,
        ranks: Sequence[int],
        tasks_per_job: int,
        logging_dir: str,
        serving: JobServing | None,
        jobs_at_once: int,
        grace: float,
    ):
        super().__init__()
        self.steps, self.tasks, self.ranks, self.tasks_per_job = list(steps), tasks, list(ranks), tasks_per_job
        self.logging_dir, self.serving, self.jobs_at_once, self.grace = logging_dir, serving, jobs_at_once, grace

    @property
    def jobs(self) -> int:
        return -(-len(self.ranks) // self.tasks_per_job)

    def run(self, data: Any = None, rank: int = 0, world_size: int = 1) -> Iterator[Any]:
        if data:
            yield from data
        if threading.current_thread() is threading.main_thread():
            leave_on_signals(self.grace)
        mine = self.ranks[rank * self.tasks_per_job : (rank + 1) * self.tasks_per_job]
        # What failed is in files: the command that waits for the jobs reads them, and decides what to do about it.
        try:
            with private_folder() as private:
                self._run(mine, Path(private))
        except TaskFailed:
            pass
        except KeyboardInterrupt:
            if not leaving():
                raise
        except Exception as error:  # of the job itself, such as a server that does not start
            logs = Folder(self.logging_dir)
            for one in mine:
                logs.replace(f"{FAILED}/{one:05d}.json", json.dumps(told_failure(one, error)).encode())

    def _run(self, mine: Sequence[int], private: Path) -> None:
        steps = self.steps
        with contextlib.ExitStack() as stack:
            if self.serving is not None:
                log = private / "vllm.log"
                if "://" not in self.logging_dir:
                    log = Path(self.logging_dir) / f"vllm-{mine[0]:05d}.log"
                window = stack.enter_context(self.serving.open(private, log))
                sharing = len(mine) * (self.jobs_at_once if self.serving.endpoints else 1)
                steps = [_at(step, str(private / ENDPOINT), max(2, window // sharing)) for step in steps]
            run_tasks(steps, ranks=mine, tasks=self.tasks, workers=len(mine), logging_dir=self.logging_dir, go_on=True)


def _at(step: PipelineStep, endpoint_file: str, window: int) -> PipelineStep:
    """The step, talking to this job's server."""
    if hasattr(step, "endpoint_file"):
        step.endpoint_file, step.window = endpoint_file, window
    return step
