"""Hands endpoints from the command to its tasks: a private file, so that a key never stands in a command line, an
environment, or what Datatrove saves of a pipeline."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from derivedata.errors import UserError
from derivedata.generation.request import Dialect, Endpoint


def write_endpoints(path: str | Path, *endpoints: Endpoint) -> None:
    """Write the file, readable by its owner alone."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump([asdict(endpoint) for endpoint in endpoints], file)


def read_endpoints(path: str | Path) -> list[Endpoint]:
    """The endpoints that `write_endpoints` wrote."""
    try:
        return [_endpoint(**fields) for fields in json.loads(Path(path).read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise UserError("no endpoint in this file", where=path, value=type(error).__name__) from None


def _endpoint(dialect: dict, **fields: str | None) -> Endpoint:
    return Endpoint(**fields, dialect=Dialect(**{**dialect, "not_sent": tuple(dialect["not_sent"])}))


def mark_failed(path: str | Path, reason: str) -> None:
    """Say to all who use the endpoint that its server is gone for good."""
    Path(f"{path}.failed").write_text(reason)


def raise_if_failed(path: str | Path) -> None:
    """Raise a UserError if the server of an endpoint is known to be gone; for `Client(alive=...)`."""
    try:
        reason = Path(f"{path}.failed").read_text()
    except OSError:
        return
    raise UserError(reason, remedy="what is finished is kept: run the same command again")
