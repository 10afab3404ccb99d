"""Runs the tasks of a command as jobs of a cluster, tries failed ones again, and says what is missing in the end."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from datatrove.pipeline.base import PipelineStep

from derivedata.errors import UserError
from derivedata.pipelines.cluster import SLURM, Cluster
from derivedata.pipelines.cluster_job import JobStep
from derivedata.pipelines.executor import FAILED, FINISHED
from derivedata.pipelines.job_serving import JobServing
from derivedata.store.paths import Folder, Missing

TRIES = 3
TRIES_OF_EXPECTED = 2  # of a failure that says what is wrong: it will say so again
SETTLE_S = 5.0  # until the files of another machine are seen here


def run_on_cluster(
    steps: Sequence[PipelineStep],
    *,
    tasks: int,
    workers: int,
    logging_dir: str,
    cluster: Cluster,
    serving: JobServing | None,
) -> None:
    """See `executor.execute`."""
    logs, left = Folder(logging_dir), list(range(tasks))
    failures: dict[int, dict] = {}
    for attempt in range(1, TRIES + 1):
        place = logs.url_of(_next_attempt(logs))
        at_once = max(1, min(-(-workers // cluster.tasks_per_job), -(-len(left) // cluster.tasks_per_job)))
        step = JobStep(
            steps=steps,
            tasks=tasks,
            ranks=left,
            tasks_per_job=cluster.tasks_per_job,
            logging_dir=place,
            serving=serving,
            jobs_at_once=at_once,
            grace=cluster.grace,
        )
        _launch(step, cluster, place, at_once)
        finished, failures = _outcomes(Folder(place), left)
        left = [rank for rank in left if rank not in finished]
        if not left:
            return
        expected = all(failures.get(rank, {}).get("expected") for rank in left)
        if attempt >= (TRIES_OF_EXPECTED if expected else TRIES):
            break
    first = left[0]
    told = failures.get(first, {}).get("error", "its job ended without a word (killed, or out of time or memory)")
    raise UserError(
        f"{len(left)} of {tasks} tasks did not finish: task {first}: {told}",
        where=logs.url,
        remedy="what is finished is kept: run the same command again to go on with the rest",
    )


def _launch(step: JobStep, cluster: Cluster, place: str, at_once: int) -> None:
    # Imported here: Slurm's executor and Ray are heavy, and only one of them is wanted.
    if cluster.executor == SLURM:
        from derivedata.pipelines.cluster_slurm import run_on_slurm

        run_on_slurm(step, cluster, place, at_once)
    else:
        from derivedata.pipelines.cluster_ray import run_on_ray

        run_on_ray(step, cluster, place, at_once)


def _next_attempt(logs: Folder) -> str:
    """A folder that no attempt had before, of this pass or an earlier one."""
    there = {path.partition("/")[0] for path in logs.names("attempt-")}
    number = 1
    while f"attempt-{number}" in there:
        number += 1
    return f"attempt-{number}"


def _outcomes(place: Folder, ranks: Sequence[int]) -> tuple[set[int], dict[int, dict]]:
    """Tasks that finished, and what the failed ones say."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        finished = {int(path.rpartition("/")[2]) for path in place.names(f"{FINISHED}/")}
        failures = {}
        for path in place.names(f"{FAILED}/"):
            try:
                failure = json.loads(place.read(path))
            except (Missing, ValueError):
                continue
            failures[failure["rank"]] = failure
        if set(ranks) <= finished | failures.keys() or time.monotonic() > deadline:
            return finished, failures
        time.sleep(0.5)
