"""Does this storage really refuse a second put under a name? Some S3-compatible servers accept it silently."""

from __future__ import annotations

import uuid
import warnings

from derivedata.errors import UserError
from derivedata.store.paths import Folder


def has_conditional_put(folder: Folder) -> bool:
    """Try it with a small file that is removed again. Raises UserError when the folder cannot be written."""
    name = f".probe-{uuid.uuid4().hex}"
    try:
        folder.create(name, b"1")
        folder.create(name, b"2")
        return folder.read(name) == b"1"
    finally:
        folder.remove(name)


def warn_unless_conditional(folder: Folder) -> bool:
    """Warn, saying what is lost, when a remote folder has no conditional put; whether it has."""
    if folder.is_local:
        return True
    try:
        fine = has_conditional_put(folder)
    except UserError as error:
        # A server that knows the header and refuses it says "not implemented".
        if "not implemented" not in error.line.lower():
            raise
        raise UserError(
            "this storage refuses conditional puts, on which exactly-once rests",
            where=folder.url,
            remedy="use a bucket that honours If-None-Match (AWS S3, recent MinIO, Ceph), or a local output",
        ) from error
    if not fine:
        warnings.warn(
            f"{folder.url}: this storage ignores conditional puts, so two writers at the same moment could overwrite "
            "each other's files; kills and restarts of one command are safe. Run one command at a time",
            stacklevel=2,
        )
    return fine
