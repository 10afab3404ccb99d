"""Checks that what was rejected is kept: the files of rejected/ hold the rows that the index of rejected rows has.

Compaction merges index rows of many units, so rows are compared over the whole output, by a digest that does not depend
on their order: the sum of the hashes of all rows.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import zstandard

from derivedata.pipelines.source import INPUT
from derivedata.store.manifest import View
from derivedata.store.paths import Folder

ROOM = "rejected/"
GENERATION = "generation"
# Columns of the index -> fields of the rows in rejected/, by stage; other stages keep their texts elsewhere.
FIELDS = {
    INPUT: {"reason": "reason", "detail": "detail", "path": "path", "line": "line"},
    GENERATION: {
        "reason": "reason",
        "detail": "detail",
        "source_uid": "uid",
        "style": "style",
        "rewrite": "rewrite",
        "piece": "piece",
        "completion_tokens": "completion_tokens",
        "run_id": "run_id",
    },
}


@dataclass(slots=True)
class RowsDigest:
    """How many rows, and the sum of their hashes."""

    rows: int = 0
    total: int = 0

    def add(self, values: Iterable[Any]) -> None:
        self.rows += 1
        hashed = hashlib.sha256(json.dumps(list(values)).encode()).digest()
        self.total = (self.total + int.from_bytes(hashed, "big")) % (1 << 256)

    def merge(self, rows: int, total: int) -> None:
        self.rows, self.total = self.rows + rows, (self.total + total) % (1 << 256)


def stage_of(path: str) -> str:
    """The stage whose rejects a file of rejected/ holds."""
    return INPUT if path.removeprefix(ROOM).startswith(INPUT) else GENERATION


def digest_file(folder: Folder, path: str) -> RowsDigest:
    """The digest of the rows of a file of rejected/. Raises ValueError or ZstdError when it is damaged."""
    digest, fields = RowsDigest(), FIELDS[stage_of(path)].values()
    with folder.open(path) as file, zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True) as lines:
        for line in io.BufferedReader(lines):
            row = json.loads(line)
            digest.add(row.get(name) for name in fields)
    return digest


def digest_index(view: View) -> dict[str, RowsDigest]:
    """The digests of the index's rows, by stage."""
    digests = {stage: RowsDigest() for stage in FIELDS}
    columns = sorted({"stage"}.union(*FIELDS.values()))
    for batch in view.dataset("rejected").to_batches(columns=columns):
        for row in batch.to_pylist():
            if row["stage"] in FIELDS:
                digests[row["stage"]].add(row[name] for name in FIELDS[row["stage"]])
    return digests


def compare_digests(view: View, kept: Mapping[str, RowsDigest]) -> Iterable[str]:
    """Stages whose index has other rows than their files, in words."""
    for stage, indexed in digest_index(view).items():
        there = kept.get(stage, RowsDigest())
        if there != indexed:
            yield f"the index of {stage} has {indexed.rows} rejected rows that are not the {there.rows} kept here"
