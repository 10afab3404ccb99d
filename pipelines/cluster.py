"""Where tasks run: on this machine, or as jobs of Slurm or Ray; settings from options and a profile file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from derivedata.errors import UserError, refuse_below_one

LOCAL, SLURM, RAY = "local", "slurm", "ray"
EXECUTORS = (LOCAL, SLURM, RAY)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """How the tasks of a command are run.

    Raises:
        UserError: a value that can't be, or one that belongs to another executor.
    """

    executor: str = LOCAL
    tasks_per_job: int = 1  # tasks that share a job, and its model server
    gpus: int = 0  # of a job
    cpus: int = 1  # of a job
    memory_gb: float | None = None  # of a job; None: what the cluster gives
    logging_dir: str | None = None  # default: logs/ of the output
    grace: float = 30.0  # seconds for what is in flight when a job is told to end
    partition: str | None = None  # Slurm
    time: str | None = None  # Slurm, e.g. 12:00:00; None: the partition's own
    qos: str | None = None  # Slurm
    sbatch: Mapping[str, str] = field(default_factory=dict)  # Slurm: further options of sbatch
    setup: str | None = None  # Slurm: shell line that makes the environment; default: this virtual environment
    ray_address: str | None = None  # Ray; None: a Ray of our own on this machine

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise UserError("no such executor", where="--executor", value=self.executor, remedy="local, slurm or ray")
        refuse_below_one(self, "tasks_per_job", "cpus")
        if self.gpus < 0 or self.grace < 0:
            raise UserError("must not be negative", where="gpus" if self.gpus < 0 else "grace")
        slurm = [name for name in ("partition", "time", "qos", "sbatch") if getattr(self, name)]
        if slurm and self.executor != SLURM:
            raise UserError("is for --executor slurm", where=f"--slurm-{slurm[0]}", remedy="add --executor slurm")
        if self.ray_address and self.executor != RAY:
            raise UserError("is for --executor ray", where="--ray-address", remedy="add --executor ray")

    @property
    def is_local(self) -> bool:
        return self.executor == LOCAL


def read_cluster(profile: str | None, options: Mapping[str, Any], sbatch: Sequence[tuple[str, str]] = ()) -> Cluster:
    """The cluster that a profile file and the command line name; the command line wins.

    Args:
        profile: a YAML file with fields of `Cluster`.
        options: fields of `Cluster`; None and 0 stand for not given.
        sbatch: options of sbatch, added to the profile's.

    Raises:
        UserError: the file can't be read, or has a key or value that it can't have.
    """
    told = _read_profile(profile) if profile else {}
    further = {str(name): str(value) for name, value in (told.pop("sbatch", None) or {}).items()} | dict(sbatch)
    told |= {name: value for name, value in options.items() if value is not None}
    return Cluster(**told, sbatch={name.lstrip("-").replace("_", "-"): value for name, value in further.items()})


def _read_profile(path: str) -> dict[str, Any]:
    import yaml

    try:
        told = yaml.safe_load(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("the cluster profile can't be read", where=path, value=str(error)) from None
    except yaml.YAMLError as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = path if line is None else f"{path}:{line + 1}"
        raise UserError("is no YAML", where=where, value=str(getattr(error, "problem", error))) from None
    if not isinstance(told, dict):
        raise UserError("a cluster profile is a list of `key: value` lines", where=path)
    kinds = {one.name: one.type for one in fields(Cluster)}
    for name, value in told.items():
        if name not in kinds:
            raise UserError("no such setting", where=path, value=str(name), remedy=f"there are {', '.join(kinds)}")
        if not _fits(kinds[name], value):
            raise UserError(f"{name} must be {_words(kinds[name])}", where=path, value=value)
    return told


def _fits(kind: str, value: Any) -> bool:
    if value is None:
        return "None" in kind or "Mapping" in kind
    if isinstance(value, bool):
        return False
    if "Mapping" in kind:
        return isinstance(value, dict)
    if "str" in kind:
        return isinstance(value, str)
    return isinstance(value, int) or ("float" in kind and isinstance(value, float))


def _words(kind: str) -> str:
    if "Mapping" in kind:
        return "options, a `key: value` line each"
    return "text (12:00:00 needs quotes)" if "str" in kind else "a number" if "float" in kind else "a whole number"
