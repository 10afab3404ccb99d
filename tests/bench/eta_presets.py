"""Make the draws that ship with the preset qin2026-n370: `python -m tests.bench.eta_presets`.

Bootstrap refits of the 355 kept runs, moved so that they centre on the published constants.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

import derivedata.scaling
from derivedata.cli.eta.inputs import read_runs
from derivedata.scaling.fit import fit
from derivedata.scaling.presets import load_preset
from tests.bench.reference import reference_folder

DRAWS = 400


def main() -> None:
    """Write derivedata/scaling/presets/qin2026-n370.json."""
    runs, _ = read_runs(reference_folder() / "scaling" / "cd_qin2026_370runs.csv")
    fitted = fit(runs, drop=15, bootstrap=DRAWS, sensitivity=())
    published = fitted.parameters.from_law(load_preset("qin2026-n370"))
    free = fitted.free
    moved = fitted.draws[:, free] - fitted.theta[free] + published[free]
    names = [name for name, is_free in zip(fitted.parameters.names, free, strict=True) if is_free]
    data = {
        "about": f"{DRAWS} bootstrap refits over {fitted.cells} (N, D) cells of the 355 kept runs, moved to the preset",
        "centre": {"N": fitted.centre.N, "D": fitted.centre.D},
        "strategies": list(fitted.strategies),
        "parameters": names,
        "draws": [[float(f"{value:.5g}") for value in row] for row in moved],
    }
    path = Path(derivedata.scaling.__file__).parent / "presets" / "qin2026-n370.json"
    path.write_text(json.dumps(data).replace("], [", "],\n["))
    print(f"{path.name}: {DRAWS} draws, sd {np.round(moved.std(0), 3)}")


if __name__ == "__main__":
    main()
