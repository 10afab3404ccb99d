"""Checkpoints of a run and its metrics, so that a killed run goes on exactly where its last checkpoint stands."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

from derivedata.errors import UserError
from derivedata.store.faults import Missing, explain
from derivedata.store.paths import Folder

ROOM = "checkpoints"
METRICS = "metrics.jsonl"


def save_state(state: Mapping[str, Any]) -> bytes:
    """A state of tensors and plain values as bytes."""
    import torch

    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def load_state(data: bytes) -> dict:
    """The state of `save_state`, on the CPU. Raises RuntimeError, EOFError or ValueError for a damaged one."""
    import torch

    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


class Checkpoints:
    """checkpoints/step-00001200.pt: whole or not there. keep: how many stay, the newest."""

    def __init__(self, folder: Folder, keep: int = 2):
        self.folder, self.keep = folder, keep

    def names(self) -> list[str]:
        """Paths of all checkpoints, oldest first."""
        return sorted(name for name in self.folder.names(f"{ROOM}/") if name.endswith(".pt"))

    def save(self, step: int, state: Mapping[str, Any]) -> str:
        """Write a checkpoint, then drop what is beyond `keep`; its path."""
        path = f"{ROOM}/step-{step:08d}.pt"
        self.folder.replace(path, save_state(state))
        self.folder.remove_many(self.names()[: -self.keep])
        return path

    def latest(self) -> dict | None:
        """The newest state, on the CPU; None when there is none."""
        names = self.names()
        if not names:
            return None
        try:
            return load_state(self.folder.read(names[-1]))
        except (RuntimeError, EOFError, ValueError) as error:
            raise UserError(
                "a damaged checkpoint",
                where=self.folder.url_of(names[-1]),
                value=str(error).splitlines()[0],
                remedy="remove it: the run goes on from the one before",
            ) from None


class Metrics:
    """metrics.jsonl: one line a log line or evaluation. On a local disk it grows line by line, elsewhere it is written
    with each checkpoint: what a run goes on from is there either way."""

    def __init__(self, folder: Folder):
        self.folder = folder
        try:
            self.rows = [json.loads(line) for line in folder.read(METRICS).splitlines()]
        except Missing:
            self.rows = []
        except ValueError:
            # A line cut by a kill; `rewind` drops what lies beyond the checkpoint anyway.
            self.rows = _whole_rows(folder.read(METRICS))

    def rewind(self, step: int) -> None:
        """Forget what lies beyond a checkpoint: steps from `step` on are taken again."""
        self.rows = [row for row in self.rows if row["step"] <= step]
        self.settle()

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row."""
        self.rows.append(dict(row))
        if self.folder.is_local:
            path = self.folder.full(METRICS)
            try:
                with open(path, "a") as file:
                    file.write(json.dumps(row) + "\n")
            except OSError as error:
                told = explain(error, path)
                if told is None:
                    raise
                raise told from None

    def keep(self) -> None:
        """Be sure that all rows so far are stored."""
        if not self.folder.is_local:
            self.settle()

    def settle(self) -> None:
        """Write all rows."""
        self.folder.replace(METRICS, "".join(json.dumps(row) + "\n" for row in self.rows).encode())


def _whole_rows(data: bytes) -> list[dict]:
    rows = []
    for line in data.splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
