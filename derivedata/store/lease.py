"""Who is writing an output now: a heartbeat file a process, so that a second command says so instead of working twice.

Leases only save work; nothing relies on them for correctness.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time

from derivedata.errors import UserError
from derivedata.store.journal import writer_name
from derivedata.store.paths import Folder, Missing
from derivedata.store.probe import warn_unless_conditional
from derivedata.store.processes import machine, process_started

ROOM = ".writers"
BEAT = 15.0
# On another host nobody can look whether the process lives; four missed beats say it does not.
PATIENCE = 60.0


class Lease:
    """The lease of one run on an output, a context manager. Ranks of one run share it (same run_id).

    Raises UserError on entry when another run is writing.
    """

    def __init__(self, folder: Folder, run_id: str, *, beat: float = BEAT, patience: float = PATIENCE) -> None:
        self.folder, self.run_id = folder, run_id
        self.beat, self.patience = beat, patience
        self.path = f"{ROOM}/{run_id}.{writer_name()}.json"
        self._since = time.time()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Lease:
        warn_unless_conditional(self.folder)
        self.folder.sweep_scratch()
        # Write first, look afterwards: of two that start at once at least one sees the other.
        self._write()
        for other in self._others():
            # The earlier one stays, so that two that see each other do not both go.
            if (other["since"], other["run_id"]) < (self._since, self.run_id):
                self.folder.remove(self.path)
                raise UserError(
                    f"another command is writing this output (process {other['pid']} on {other['host']}, "
                    f"run {other['run_id']})",
                    where=self.folder.url,
                    remedy="wait for it or stop it, then run this again",
                )
        self._thread = threading.Thread(target=self._keep, daemon=True, name="lease")
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(UserError):  # a full or vanished disk must not hide the error we come from
            self.folder.remove(self.path)

    def _keep(self) -> None:
        while not self._stop.wait(self.beat):
            with contextlib.suppress(UserError):  # a missed beat costs nothing, and the run will meet the fault itself
                self._write()

    def _write(self) -> None:
        content = {
            "run_id": self.run_id,
            "host": socket.gethostname(),
            "machine": machine(),
            "pid": os.getpid(),
            "process_started": process_started(os.getpid()),
            "since": self._since,
            "beat": time.time(),
        }
        self.folder.replace(self.path, json.dumps(content).encode())

    def _others(self) -> list[dict]:
        """Other runs that live; what dead ones left is removed."""
        alive = []
        for path in self.folder.names(f"{ROOM}/"):
            if path.startswith(f"{ROOM}/{self.run_id}.") or not path.endswith(".json"):
                continue
            try:
                content = json.loads(self.folder.read(path))
                lives = is_live(content, patience=self.patience)
            except Missing:
                continue
            except (ValueError, KeyError, TypeError):
                lives = False
            if lives:
                alive.append(content)
            else:
                self.folder.remove(path)
        return sorted(alive, key=lambda content: (content["since"], content["run_id"]))


def is_live(content: dict, *, patience: float = PATIENCE) -> bool:
    """Whether the writer of a heartbeat lives: its process is there (same machine), or its last beat is recent."""
    if content["machine"] == machine():
        started = process_started(content["pid"])
        return started is not None and started == content["process_started"]
    return time.time() - content["beat"] < patience
