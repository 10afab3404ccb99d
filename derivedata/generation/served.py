"""What `derivedata serve` leaves for other commands of the same user: address, key and model of its server.

A private file under the cache folder, which goes when the server does; one whose owner is gone is noticed.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from derivedata.errors import UserError
from derivedata.generation import supervisor
from derivedata.generation.embedded import cache_folder
from derivedata.generation.model import ModelFolder
from derivedata.generation.request import Endpoint

LOCAL = "local"


@dataclass(frozen=True, kw_only=True, slots=True)
class Served:
    """A server that `derivedata serve` keeps."""

    endpoint: Endpoint
    model: ModelFolder
    context: int  # tokens of prompt and answer that it was started with
    window: int  # requests to have in flight there
    owner: int  # pid of the command
    owner_started: int | None


def announce(endpoint: Endpoint, model: ModelFolder, *, context: int, window: int) -> Path:
    """Write the file for a server of this process, readable by its owner alone; returns where."""
    path = _folder() / f"{os.getpid()}.json"
    path.unlink(missing_ok=True)
    record = {
        "boot": supervisor.boot_id(),
        "owner": os.getpid(),
        "owner_started": supervisor.started_at(os.getpid()),
        "url": endpoint.url,
        "api_key": endpoint.api_key,
        "model": model.name,
        "folder": str(model.path),
        "revision": model.revision,
        "is_embedded": model.is_embedded,
        "context": context,
        "window": window,
    }
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(record, file)
    return path


def all_served() -> tuple[list[Served], list[str]]:
    """The servers that are kept now, and the addresses of those whose command was killed (their files are removed)."""
    found, gone = [], []
    for path in sorted(_folder().glob("*.json")):
        try:
            record = json.loads(path.read_text("utf-8"))
            alive = record["boot"] == supervisor.boot_id()
            alive = alive and supervisor.started_at(record["owner"]) == record["owner_started"]
            served = Served(
                endpoint=Endpoint(url=record["url"], model=record["model"], api_key=record["api_key"]),
                model=ModelFolder(
                    path=Path(record["folder"]),
                    name=record["model"],
                    revision=record["revision"],
                    is_embedded=record["is_embedded"],
                ),
                context=record["context"],
                window=record["window"],
                owner=record["owner"],
                owner_started=record["owner_started"],
            )
        except FileNotFoundError:
            continue  # it has just ended
        except (OSError, ValueError, LookupError, TypeError):
            continue  # being written
        if alive:
            found.append(served)
        else:
            path.unlink(missing_ok=True)
            gone.append(served.endpoint.url)
    return found, gone


def find_served(url: str) -> Served | None:
    """The kept server at an address, or the only one for `local`; None for an address of somebody else's.

    Raises:
        UserError: `local` is none or several, or the command at that address was killed.
    """
    servers, gone = all_served()
    if url == LOCAL:
        if len(servers) == 1:
            return servers[0]
        if servers:
            told = ", ".join(f"{served.endpoint.url} ({served.model.name})" for served in servers)
            raise UserError(f"{len(servers)} servers are kept here: {told}", where="--endpoint", value=url)
        told = f"; the one at {gone[0]} was killed" if gone else ""
        raise UserError(
            f"no server is kept here{told}", where="--endpoint", value=url, remedy="start one with: derivedata serve"
        )
    address = url.rstrip("/").removesuffix("/v1")
    if address in gone:
        raise UserError(
            "the command that kept this server was killed", where=url, remedy="start it again: derivedata serve"
        )
    return next((served for served in servers if served.endpoint.url == address), None)


def _folder() -> Path:
    folder = cache_folder() / "served"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"cannot write: {error.strerror}", where=folder, remedy="set DERIVEDATA_CACHE") from None
    return folder
