"""What every job with a model shares: who listens, how the tasks come to a server, how a run is recorded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from derivedata.errors import UserError
from derivedata.generation.endpoint import mark_failed, write_endpoint
from derivedata.generation.launch import ServerSettings
from derivedata.generation.model import ModelFolder
from derivedata.generation.server import VllmServer
from derivedata.store.fingerprint import RunConfig
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import new_run, open_run, save_run


class Listener(Protocol):
    """Hears what a run does."""

    def say(self, text: str) -> None:
        """A plain line."""

    def track(self, title: str, look: Callable[[], tuple[float, float | None, str] | None]) -> AbstractContextManager:
        """A block of long work; `look` gives (done, total, words) at any moment."""


class Silence:
    """A listener that prints nothing."""

    def say(self, text: str) -> None:
        pass

    def track(self, title: str, look: Callable[[], Any]) -> AbstractContextManager:
        return contextlib.nullcontext()


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """What a server is started for: see `own_server`."""

    model: ModelFolder
    settings: ServerSettings
    private: Path  # a folder of this run on this machine
    log: Path
    listener: Listener


# Writes the endpoint file while its block runs, and gives how many requests to have in flight there.
Serve = Callable[[Serving], AbstractContextManager[int]]
ENDPOINT = "endpoint.json"


@contextlib.contextmanager
def own_server(serving: Serving) -> Iterator[int]:
    """A vLLM server on this machine for as long as the block runs."""
    endpoint_file, over = serving.private / ENDPOINT, threading.Event()
    server = VllmServer(serving.model, serving.settings, log=serving.log)

    def watch() -> None:
        # The tasks run in other processes: they see a file, not our server.
        while not over.wait(2.0):
            try:
                server.check()
            except UserError as error:
                mark_failed(endpoint_file, error.line)
                return

    with serving.listener.track(f"starting vLLM with {serving.model.name}", lambda: None):
        server.start()
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        write_endpoint(endpoint_file, server.endpoint)
        # Twice what the engine runs at once: there is always a next request, and none waits long.
        yield 2 * server.launch.max_num_seqs
    finally:
        over.set()
        watcher.join()
        server.stop()


@contextlib.contextmanager
def recorded(folder: Folder, config: RunConfig, run_id: str) -> Iterator[None]:
    """Keeps the record of a run while its block runs: what it was told, how it ended, the books it left.

    Raises UserError when the output was made with another configuration.
    """
    record = open_run(folder, new_run(config, run_id=run_id))
    status = "failed"
    try:
        yield
        status = "done"
    except KeyboardInterrupt:
        status = "stopped"
        raise
    finally:
        save_run(folder, record.finished(status, books=Manifest(folder).books()))


def start_over(folder: Folder, rooms: Sequence[str]) -> None:
    """Throw away what an output holds: its rooms, the run record and the card."""
    for room in rooms:
        folder.remove_tree(room)
    folder.remove_many(["run.json", "README.md"])
