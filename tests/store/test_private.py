"""Private folders: gone with their process, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from derivedata.store.private import private_folder

pytestmark = pytest.mark.faults


def test_what_a_killed_process_left_goes_with_the_next_and_that_of_a_living_one_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os; from derivedata.store.private import private_folder; p = private_folder()"
    code += "; p.__enter__(); os._exit(9)"
    # Nothing of Python's own runs at such an end, as at a SIGKILL.
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path)}, check=False)
    (left,) = tmp_path.iterdir()
    with private_folder() as living, private_folder() as further:
        assert not left.exists()
        assert Path(living).is_dir() and Path(further).is_dir()
    assert list(tmp_path.iterdir()) == []
