"""What goes wrong at the file system: which faults pass by themselves, and how the others are said in one line."""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable
from typing import TypeVar

from derivedata.errors import UserError

Result = TypeVar("Result")

_TRANSIENT_ERRNO = {
    errno.EBUSY,  # SlowDown, ServiceUnavailable, a conditional put that met another one
    errno.EIO,
    getattr(errno, "EREMOTEIO", errno.EIO),  # InternalError
    errno.ETIMEDOUT,
    errno.ECONNRESET,
    errno.ECONNREFUSED,
    errno.EPIPE,
    errno.EHOSTUNREACH,
    errno.ENETUNREACH,
    errno.EAGAIN,
}
# By name, so that no client library of an object storage is imported for a local disk.
_TRANSIENT_CLASSES = {
    "aiohttp.client_exceptions.ClientError",
    "botocore.exceptions.HTTPClientError",
    "botocore.exceptions.ConnectionError",
    "botocore.exceptions.IncompleteReadError",
    "urllib3.exceptions.HTTPError",
    "requests.exceptions.ConnectionError",
}


class Missing(UserError, FileNotFoundError):
    """A file that is not there: an ordinary FileNotFoundError for code, one line for people."""

    def __reduce__(self):
        return (_rebuild_missing, (self.what, self.where, self.value, self.remedy))


def _rebuild_missing(what, where, value, remedy) -> Missing:
    return Missing(what, where=where, value=value, remedy=remedy)


def _class_names(error: BaseException) -> set[str]:
    return {f"{c.__module__}.{c.__qualname__}" for c in type(error).__mro__}


def is_transient(error: BaseException) -> bool:
    """Whether trying again may help: time-outs, lost connections, servers that ask for patience."""
    if isinstance(error, (FileExistsError, FileNotFoundError, PermissionError)):
        return False
    if isinstance(error, (TimeoutError, ConnectionError)):
        return True
    if isinstance(error, OSError) and error.errno in _TRANSIENT_ERRNO:
        return True
    return bool(_class_names(error) & _TRANSIENT_CLASSES)


def patiently(action: Callable[[], Result], *, tries: int = 6, pause: float = 0.4) -> Result:
    """Run `action`, again after transient faults: `pause` seconds doubled each time, with full jitter so that
    a thousand ranks told to slow down do not come back together."""
    for attempt in range(tries):
        try:
            return action()
        except Exception as error:
            if attempt == tries - 1 or not is_transient(error):
                raise
            time.sleep(pause * 2**attempt * (0.5 + random.random()))
    raise AssertionError("unreachable")


def explain(error: BaseException, where: str) -> UserError | None:
    """The one line for an expected fault at `where`; None when the error is a bug and deserves its traceback."""
    if isinstance(error, UserError):
        return error
    if isinstance(error, FileNotFoundError):
        return Missing("there is no such file, folder or bucket", where=where)
    told = str(error) or type(error).__name__
    for applies, what, value, remedy in (
        (_is_denied, "permission denied", None, "check the owner and mode, or the credentials"),
        (_is_clash, "a file and a folder want the same name", None, "use another output"),
        (_is_full, "no space left", None, "free some space and run the same command again"),
        (_has_errno(errno.EROFS), "the file system is read-only", None, "use another output"),
        (_has_errno(errno.ENAMETOOLONG), "the name is too long for this file system", None, None),
        (_lacks_credentials, "no credentials for this storage", None, "set them the way its client expects"),
        (is_transient, "the storage does not answer", told, "run the same command again"),
        (_is_from_storage, "the storage refused", told, None),
    ):
        if applies(error):
            return UserError(what, where=where, value=value, remedy=remedy)
    return None


def _has_errno(*numbers: int) -> Callable[[BaseException], bool]:
    return lambda error: isinstance(error, OSError) and error.errno in numbers


_is_full = _has_errno(errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))


def _is_denied(error: BaseException) -> bool:
    return isinstance(error, PermissionError)


def _is_clash(error: BaseException) -> bool:
    return isinstance(error, (NotADirectoryError, IsADirectoryError, FileExistsError))


def _lacks_credentials(error: BaseException) -> bool:
    return any(name.endswith(("NoCredentialsError", "PartialCredentialsError")) for name in _class_names(error))


def _is_from_storage(error: BaseException) -> bool:
    return isinstance(error, OSError) or any(n.startswith("botocore.exceptions.") for n in _class_names(error))
