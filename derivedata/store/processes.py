"""Which process is meant by a number: told by machine, boot and start, since process ids come again."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
from functools import cache
from pathlib import Path


def machine() -> str:
    """What makes a process id mean the same process: host, boot and process namespace."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with contextlib.suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def process_started(pid: int) -> int | None:
    """When a process started, in ticks since boot (process ids come again, and a clock may jump); None when there is no
    such process, or only a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


@cache
def _mark_of(pid: int) -> str:
    return f"{_machine_mark()}-{pid}-{process_started(pid)}-"


def mark() -> str:
    """A prefix for the names of this process's temporary files, by which others see whether it lives."""
    return _mark_of(os.getpid())


def is_left(name: str) -> bool:
    """Whether a name bears the mark of a process of this machine that is gone; False without a mark of this machine."""
    where, _, rest = name.partition("-")
    pid, _, rest = rest.partition("-")
    started = rest.partition("-")[0]
    return where == _machine_mark() and pid.isdigit() and str(process_started(int(pid))) != started


@cache
def _machine_mark() -> str:
    return hashlib.sha256(machine().encode()).hexdigest()[:12]
