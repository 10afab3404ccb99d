"""Where the reference data is, for benches: DERIVEDATA_REFERENCE_DATA, or the folder beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path


def reference_folder() -> Path:
    """The folder of reference data; FileNotFoundError when it is absent."""
    named = os.environ.get("DERIVEDATA_REFERENCE_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "data"
    if not folder.is_dir():
        raise FileNotFoundError(f"the reference data is not at {folder} (set DERIVEDATA_REFERENCE_DATA)")
    return folder
