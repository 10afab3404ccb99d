"""What every job with a model shares: who listens, how the tasks come to a server, how a run is recorded."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from derivedata.errors import UserError
from derivedata.generation.connect import ServedModel
from derivedata.generation.endpoint import mark_failed, write_endpoints
from derivedata.generation.launch import ServerSettings
from derivedata.generation.model import ModelFolder
from derivedata.generation.profile import apply_profile
from derivedata.generation.request import Endpoint
from derivedata.generation.server import VllmServer, read_metrics
from derivedata.store.fingerprint import RunConfig
from derivedata.store.manifest import Manifest
from derivedata.store.paths import Folder
from derivedata.store.runs import current_run, new_run, open_run, save_run


class Listener(Protocol):
    """Hears what a run does."""

    def say(self, text: str) -> None:
        """A plain line."""

    def track(self, title: str, look: Callable[[], tuple | None]) -> AbstractContextManager:
        """A block of long work; `look` gives (done, total, words) at any moment, and what is done a second if known."""


class Silence:
    """A listener that prints nothing."""

    def say(self, text: str) -> None:
        pass

    def track(self, title: str, look: Callable[[], Any]) -> AbstractContextManager:
        return contextlib.nullcontext()


@dataclass(frozen=True, kw_only=True, slots=True)
class Serving:
    """What a server is started for: see `own_server`."""

    model: ModelFolder | ServedModel
    settings: ServerSettings
    private: Path  # a folder of this run on this machine
    log: Path
    listener: Listener
    generated: Callable[[Callable[[], int | None]], None] | None = None  # hears of the server's counter of new tokens


# Writes the endpoint file while its block runs, and gives how many requests to have in flight there.
Serve = Callable[[Serving], AbstractContextManager[int]]
ENDPOINT = "endpoint.json"


@contextlib.contextmanager
def own_server(serving: Serving) -> Iterator[int]:
    """A vLLM server on this machine for as long as the block runs."""
    endpoint_file, over = serving.private / ENDPOINT, threading.Event()
    settings = apply_profile(serving.model, serving.settings)
    server = VllmServer(serving.model, settings, log=serving.log)

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
        write_endpoints(endpoint_file, server.endpoint)
        if serving.generated:
            serving.generated(lambda: generated_tokens(server.endpoint))
        # Twice what the engine runs at once: there is always a next request, and none waits long.
        yield server.launch.window
    finally:
        over.set()
        watcher.join()
        server.stop()


def generated_tokens(endpoint: Endpoint) -> int | None:
    """The tokens that a vLLM server has generated since its start; None when it doesn't say."""
    try:
        return read_metrics(endpoint).generation_tokens
    except (OSError, ValueError):
        return None


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


def check_output(folder: Folder, job: str, inputs: Sequence[str]) -> set[str]:
    """Refuse an output that is not ours to write: one that holds the input, or files that no run of this job made.

    Args:
        folder: the output.
        job: name of the job, as the run record has it.
        inputs: local paths or URLs of the input's files.

    Returns:
        Inputs that are files of the output itself, where that lies within the corpus: they are not meant.

    Raises:
        UserError: with the file that is in the way.
    """
    root = os.path.realpath(folder.url) if folder.is_local else folder.url.rstrip("/")
    inside = {url for url in inputs if _place(url).startswith(f"{root}/")}
    record = current_run(folder)
    if inside and (record is None or len(inside) == len(inputs)):
        remedy = "name another output: it would be mixed with the input, and --restart would remove both"
        raise UserError("the output folder holds the input", where=folder.url, value=min(inside), remedy=remedy)
    if record is not None:
        if record.identity.get("job") != job:
            made = record.identity.get("job")
            raise UserError(f"the output was made by {made}", where=folder.url, remedy="name another output")
        return inside
    for path in folder.names(""):
        if not path.startswith((".writers/", ".tmp/")):
            remedy = "name a new or empty folder"
            if path.startswith("manifest/"):
                remedy = "run.json is missing: put it back (manifest/runs/ has copies), or name another output"
            raise UserError("the output folder is not empty, and not ours", where=folder.url, value=path, remedy=remedy)
    return inside


def _place(url: str) -> str:
    return url if "://" in url else os.path.realpath(url)


def start_over(folder: Folder, rooms: Sequence[str]) -> None:
    """Throw away what an output of ours holds: its rooms, the run record and the card.

    The manifest goes first, since nothing may be listed there that is gone, and the run record last: interrupted, it is
    still an output of ours.
    """
    for room in ("manifest/units", "manifest/snapshots", *rooms):
        folder.remove_tree(room)
    folder.remove_many(["README.md"])
    folder.remove_many(["run.json"])
