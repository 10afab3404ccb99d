"""Verifiers that tests share: importing math-verify takes seconds."""

from __future__ import annotations

import pytest

from derivedata.problems import Verifier, WorkerLimits


@pytest.fixture(scope="session")
def verifier():
    """One whose deadline a busy machine doesn't reach with an ordinary answer."""
    with Verifier(limits=WorkerLimits(workers=2, deadline=30)) as verifier:
        yield verifier


@pytest.fixture(scope="session")
def impatient():
    """One for hostile answers."""
    with Verifier(limits=WorkerLimits(workers=2, deadline=2)) as verifier:
        yield verifier
