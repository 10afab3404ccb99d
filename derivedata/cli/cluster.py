"""The options of every command whose tasks can run as jobs of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from derivedata.errors import UserError

if TYPE_CHECKING:
    from derivedata.pipelines.cluster import Cluster

_NAMES = {
    "executor": "executor",
    "slurm_partition": "partition",
    "slurm_time": "time",
    "slurm_qos": "qos",
    "slurm_gpus": "gpus",
    "ray_address": "ray_address",
    "logging_dir": "logging_dir",
    "tasks_per_job": "tasks_per_job",
}


def cluster_options(command):
    """Add them; the command hands its `options` to `take_cluster`."""
    for option in reversed(
        [
            click.option(
                "--executor", type=click.Choice(["local", "slurm", "ray"]), help="Where tasks run.  [default: local]"
            ),
            click.option("--cluster", metavar="FILE", help="YAML profile with these settings and some more."),
            click.option("--tasks-per-job", type=click.IntRange(1), help="Tasks that share a job and its server."),
            click.option("--slurm-partition", help="Slurm's partition.  [default: its own]"),
            click.option("--slurm-time", metavar="H:MM:SS", help="Time of a job.  [default: the partition's]"),
            click.option("--slurm-qos", help="Slurm's quality of service."),
            click.option("--slurm-gpus", type=click.IntRange(0), help="GPUs of a job (of Slurm or Ray)."),
            click.option(
                "--sbatch", multiple=True, metavar="KEY=VALUE", help="Passed to sbatch. Repeatable, e.g. account=x."
            ),
            click.option("--ray-address", help="A Ray that runs already.  [default: one of our own on this machine]"),
            click.option("--logging-dir", help="Folder for logs that all machines see.  [default: OUTPUT/logs]"),
        ]
    ):
        command = option(command)
    return command


def take_cluster(options: dict[str, Any]) -> Cluster | None:
    """The cluster that a command's options name, taken out of them; None for tasks on this machine."""
    profile, sbatch = options.pop("cluster"), options.pop("sbatch")
    given = {field: options.pop(option) for option, field in _NAMES.items()}
    if profile is None and not sbatch and all(value is None for value in given.values()):
        return None
    from derivedata.pipelines.cluster import read_cluster

    pairs = []
    for text in sbatch:
        key, equals, value = text.partition("=")
        if not equals or not key.strip("-"):
            raise UserError("must be key=value", where="--sbatch", value=text)
        pairs.append((key, value))
    return read_cluster(profile, given, pairs)
