"""What the child processes of the kill and race tests do: all the work there is, as a command does it."""

from __future__ import annotations

import importlib
import os
import random

from derivedata.store.compaction import compact
from derivedata.store.ledger import Ledger
from derivedata.store.paths import Folder
from tests.store import samples

# What the first commit of a process imports is there before a child starts, so that kills meet work and no imports.
for _module in ("fsspec.implementations.local", "pandas", "pyarrow.parquet"):
    importlib.import_module(_module)


def make_everything(place: str, chunks: int, *, grace: float | None, seed: int = 0, ready=None) -> None:
    """Commit all chunks, in an order of its own, with texts that name the process; compact as it goes when `grace`
    (seconds before superseded files go) is given."""
    if ready is not None:
        ready.set()
    folder = Folder(place)
    ledger = Ledger(folder)
    order = list(range(chunks))
    random.Random(seed).shuffle(order)
    writer = f"{os.getpid()}-{seed}"
    for chunk in order:
        samples.work(ledger, [chunk], text=lambda key: f"{key} by {writer}")
        if grace is not None:
            compact(folder, at_least=2, grace=grace)


def compact_for_ever(place: str, *, ready=None) -> None:
    """Commit one unit after the other and compact after each."""
    if ready is not None:
        ready.set()
    folder = Folder(place)
    ledger = Ledger(folder)
    ledger.sweep()
    chunk = 1000 + len(ledger.committed())
    while True:
        samples.work(ledger, [chunk])
        compact(folder, at_least=1, grace=0)
        chunk += 1
