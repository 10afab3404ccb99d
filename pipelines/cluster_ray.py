"""Jobs of Ray, run by Datatrove's executor on a cluster that is there, or on a Ray of our own on this machine."""

from __future__ import annotations

from typing import Any

from derivedata.errors import UserError
from derivedata.generation import hardware
from derivedata.pipelines.cluster import Cluster
from derivedata.pipelines.cluster_job import JobStep

GIB = 1 << 30
STORE = 200 << 20  # bytes of the object store of a Ray of our own: nothing large goes through it


def run_on_ray(step: JobStep, cluster: Cluster, place: str, at_once: int) -> None:
    """Run a step's jobs and wait for their end.

    Raises:
        UserError: Ray is not there, or no node of it can ever give what a job asks for.
    """
    ray = _ray(cluster.ray_address)
    _check_resources(ray, cluster)
    from datatrove.executor.ray import RayPipelineExecutor

    executor = RayPipelineExecutor(
        [step],
        tasks=step.jobs,
        workers=at_once,
        logging_dir=f"{place}/jobs",
        skip_completed=False,
        cpus_per_task=cluster.cpus,
        # Ray reserves it; what is not asked for would pend where it is not there.
        mem_per_cpu_gb=(cluster.memory_gb or 0.0) / cluster.cpus,
        gpus_per_task=cluster.gpus,
    )
    executor.run()


def _ray(address: str | None) -> Any:
    """The module, connected; it stays so until this process ends, since a start takes seconds and a job has passes."""
    try:
        import ray
    except ImportError:
        raise UserError("Ray is not installed", remedy="uv pip install 'ray[default]'") from None
    if ray.is_initialized():
        return ray
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            cores = len(hardware.usable_cores())
            ray.init(num_cpus=cores, object_store_memory=STORE, include_dashboard=False, **quiet)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        what = "no Ray answers" if address else "Ray does not start"
        told = str(error).strip().split("\n")[0]
        raise UserError(what, where=address, value=told, remedy="see `ray status`") from None
    return ray


def _check_resources(ray: Any, cluster: Cluster) -> None:
    """Refuse what would wait for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {"CPU": cluster.cpus, "GPU": cluster.gpus, "memory": (cluster.memory_gb or 0) * GIB}
    if any(all(node.get(name, 0) >= value for name, value in wanted.items()) for node in nodes):
        return
    most = {name: max((node.get(name, 0) for node in nodes), default=0) for name in wanted}
    told = f"{cluster.cpus} CPUs, {cluster.gpus} GPUs" + (f" and {cluster.memory_gb:g} GB" if cluster.memory_gb else "")
    raise UserError(
        f"no node of this Ray has {told}: it would wait for ever",
        where=cluster.ray_address,
        value=f"the largest have {most['CPU']:g} CPUs, {most['GPU']:g} GPUs, {most['memory'] / GIB:.0f} GB",
        remedy="ask for less, or add such a node",
    )
