"""Jobs of Slurm: an array of jobs is submitted by Datatrove's executor, watched, and ended when the command is."""

from __future__ import annotations

import contextlib
import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import dill
from datatrove.executor.slurm import SlurmPipelineExecutor
from dill import CONTENTS_FMODE

from derivedata.errors import UserError
from derivedata.pipelines.cluster import Cluster
from derivedata.pipelines.cluster_job import JobStep

POLL_S = 2.0
# Reasons of pending jobs that time does not cure.
NEVER = frozenset(
    {
        "BadConstraints",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "PartitionInactive",
        "PartitionDown",
        "InvalidQOS",
        "InvalidAccount",
        "JobHeldAdmin",
        "DependencyNeverSatisfied",
    }
)
_ARRAY_SIZE = re.compile(r"^MaxArraySize\s*=\s*(\d+)", re.MULTILINE)


class SlurmJobs(SlurmPipelineExecutor):
    """Datatrove's executor with the options of a `Cluster`; in the job it is the same program that runs."""

    def __init__(self, step: JobStep, cluster: Cluster, place: str, at_once: int):
        environment = Path(sys.prefix) / "bin" / "activate"
        super().__init__(
            [step],
            tasks=step.jobs,
            time=cluster.time or "",
            partition=cluster.partition or "",
            cpus_per_task=cluster.cpus,
            gpus_per_task=cluster.gpus,
            workers=at_once if at_once < step.jobs else -1,
            job_name="derivedata",
            qos=cluster.qos or "",
            env_command=cluster.setup,
            venv_path=str(environment) if environment.exists() else None,
            sbatch_args=dict(cluster.sbatch),
            max_array_size=_max_array_size(),
            logging_dir=f"{place}/jobs",
            skip_completed=False,
            requeue_signals=None,  # the step leaves in good order, and the command that waits goes on
        )
        self.memory_gb, self.grace = cluster.memory_gb, cluster.grace

    def get_sbatch_args(self, max_array: int = 1) -> dict[str, Any]:
        """Datatrove's, less what was not asked for: the cluster's own values are better guesses than ours."""
        args = super().get_sbatch_args(max_array)
        del args["mem-per-cpu"]
        if self.memory_gb is not None:
            args["mem"] = f"{math.ceil(self.memory_gb * 1024)}M"
        for name in ("time", "partition"):
            if not args[name]:
                del args[name]
        # Long enough before the end of its time that what is in flight can be finished.
        return {"signal": f"USR1@{math.ceil(self.grace) + 30}", **args}

    def submit(self) -> list[str]:
        """Submit the jobs, in several arrays where one can't hold them; their ids. Raises UserError."""
        with self.logging_dir.open("executor.pik", "wb") as file:
            dill.dump(self, file, fmode=CONTENTS_FMODE)
        with self.logging_dir.open("ranks_to_run.json", "w") as file:
            json.dump(list(range(self.tasks)), file)
        most = self.max_array_size if self.max_array_size > 0 else self.tasks
        command = f"srun -l -n 1 launch_pickled_pipeline {self.logging_dir.resolve_paths('executor.pik')}"
        script = self.get_launch_file_contents(self.get_sbatch_args(min(self.tasks, most)), command)
        ids: list[str] = []
        for offset in range(math.ceil(self.tasks / most)):
            args = ["--parsable", f"--export=ALL,RUN_OFFSET={offset}"]
            if ids:
                args.append(f"--dependency=afterany:{ids[-1]}")
            try:
                ids.append(_slurm("sbatch", *args, given=script).strip().split(";")[0])
            except UserError:
                _cancel(ids)
                raise
        return ids


def run_on_slurm(step: JobStep, cluster: Cluster, place: str, at_once: int) -> None:
    """Run a step's jobs and wait for their end.

    Raises:
        UserError: Slurm refuses them, or says that they can never start.
    """
    _check_partition(cluster)
    jobs = SlurmJobs(step, cluster, place, at_once)
    ids = jobs.submit()
    try:
        while states := _states(ids):
            reasons = {reason for state, reason in states if state == "PENDING"} & NEVER
            if reasons:
                raise UserError(
                    f"Slurm says that these jobs can't start: {', '.join(sorted(reasons))}",
                    where=f"job {ids[0]}",
                    remedy="ask for less, or for another partition; the jobs were cancelled",
                )
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        _leave(ids, cluster.grace)
        raise
    except BaseException:
        _cancel(ids)
        raise


def _check_partition(cluster: Cluster) -> None:
    there = [name.rstrip("*") for name in _slurm("sinfo", "-h", "-o", "%P").split()]
    if cluster.partition and cluster.partition not in there:
        raise UserError(
            "Slurm has no such partition",
            where="--slurm-partition",
            value=cluster.partition,
            remedy=f"there are {', '.join(sorted(set(there)))}",
        )


def _max_array_size() -> int:
    """The most jobs of an array."""
    match = _ARRAY_SIZE.search(_slurm("scontrol", "show", "config"))
    return max(1, int(match[1])) if match else 1001


def _states(ids: list[str]) -> list[tuple[str, str]]:
    """(state, reason) of all jobs that are waiting or running."""
    result = subprocess.run(
        ["squeue", "-h", "-r", "-o", "%T|%r", "-j", ",".join(ids)], capture_output=True, text=True, check=False
    )
    if result.returncode and "Invalid job id" not in result.stderr:
        time.sleep(POLL_S)  # the controller is restarting, say: the jobs don't mind
        return [("UNKNOWN", "")]
    return [(state, reason) for state, _, reason in (line.partition("|") for line in result.stdout.splitlines())]


def _leave(ids: list[str], grace: float) -> None:
    """Let jobs that run finish what is in flight; those that wait are cancelled."""
    with contextlib.suppress(UserError):
        _slurm("scancel", "--state=PENDING", *ids)
        _slurm("scancel", "--signal=USR1", *ids)
    deadline = time.monotonic() + grace + 30
    with contextlib.suppress(KeyboardInterrupt):  # asked for a second time
        while _states(ids) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    _cancel(ids)


def _cancel(ids: list[str]) -> None:
    with contextlib.suppress(UserError):
        if ids:
            _slurm("scancel", *ids)


# What sbatch says -> (what, remedy).
_REFUSALS = (
    ("invalid partition", "Slurm has no such partition", "name one with --slurm-partition"),
    ("no partition specified", "Slurm has no default partition", "name one with --slurm-partition"),
    ("invalid qos", "Slurm has no such quality of service", "leave --slurm-qos out, or name one of yours"),
    ("node configuration is not available", "no node of the partition has what a job asks for", "ask for less"),
    ("invalid generic resource", "the nodes of this Slurm have no GPUs that it knows of", "leave --slurm-gpus out"),
    ("time limit", "the partition does not give so much time", "lower --slurm-time"),
    ("unable to contact", "the Slurm controller does not answer", "is slurmctld up? (sinfo)"),
)


def _slurm(program: str, *args: str, given: str | None = None) -> str:
    """Run a program of Slurm's; what it printed. Raises UserError with what it refused."""
    try:
        result = subprocess.run([program, *args], input=given, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UserError(
            f"there is no {program} here", remedy="run this on a machine of the cluster that submits jobs"
        ) from None
    if result.returncode == 0:
        return result.stdout
    said = " ".join(result.stderr.split())
    for words, what, remedy in _REFUSALS:
        if words in said.lower():
            raise UserError(what, where=program, value=said, remedy=remedy)
    raise UserError("Slurm refused", where=program, value=said)
