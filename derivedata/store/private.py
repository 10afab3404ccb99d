"""A folder of this process alone, gone afterwards; what killed processes left is removed by whoever needs one next."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from derivedata.store.processes import is_left, mark

_PREFIX = "derivedata-private-"


@contextlib.contextmanager
def private_folder() -> Iterator[str]:
    """A temporary folder for as long as the block runs."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if is_left(left.name.removeprefix(_PREFIX)):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX + mark()) as folder:
        yield folder
