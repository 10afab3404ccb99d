"""Which faults are tried again, and which are said at once."""

from __future__ import annotations

import errno

import pytest

from derivedata.store.faults import explain, is_transient, patiently

pytestmark = pytest.mark.faults


class _BotocoreTimeout(Exception):
    """Stands for botocore's own, which is recognised by name so that nobody imports it."""


_BotocoreTimeout.__module__, _BotocoreTimeout.__qualname__ = "botocore.exceptions", "HTTPClientError"


@pytest.mark.parametrize(
    "error", [TimeoutError(), ConnectionResetError(), OSError(errno.EBUSY, "SlowDown"), _BotocoreTimeout()]
)
def test_transient_faults_are_tried_again(error):
    outcomes = iter([error, error, "done"])

    def action():
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert patiently(action, tries=3, pause=0.001) == "done"


@pytest.mark.parametrize("error", [PermissionError(), FileExistsError(), OSError(errno.ENOSPC, "full"), ValueError()])
def test_other_faults_are_not(error):
    calls = []

    def action():
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        patiently(action, pause=0.001)
    assert len(calls) == 1


def test_patience_ends():
    calls = []

    def action():
        calls.append(1)
        raise TimeoutError("no answer")

    with pytest.raises(TimeoutError):
        patiently(action, tries=4, pause=0.001)
    assert len(calls) == 4
    assert (
        "does not answer (got no answer). Run the same command again"
        in explain(TimeoutError("no answer"), "s3://x").line
    )


def test_a_bug_keeps_its_traceback():
    assert explain(KeyError("x"), "here") is None and not is_transient(KeyError("x"))
