"""Published constants by vintage; never mix two. `load_preset("qin2026-n370")` gives a `Law`."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from derivedata.errors import UserError
from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.form import FORMS
from derivedata.scaling.law import Law, Saturation, Support
from derivedata.scaling.model import Centre, Parameters

_QIN_SUPPORT = Support(N=(14e6, 600e6), tpp=(1.0, 320.0), x={"repeat": 63.0, "paraphrase": 20.5})


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A published law with the sentence that says where it comes from."""

    law: Law
    source: str


PRESETS: dict[str, Preset] = {
    "qin2026-n370": Preset(
        source="Qin et al. 2026, arXiv 2607.25271: 370 runs, 355 kept, Huber 0.1 on the log of the loss",
        law=Law(
            name="qin2026-n370",
            E=1.3958,
            A=225.30,
            B=17737.7,
            alpha=0.28914,
            beta=0.43782,
            strategies={
                "repeat": Saturation(lnK=10.7405, rho=-0.41606, sigma=-0.40350),
                "paraphrase": Saturation(lnK=26.8685, rho=-1.30303, sigma=-1.14999),
            },
            support=_QIN_SUPPORT,
        ),
    ),
    "qin2026-n356": Preset(
        source="Qin et al. 2026, arXiv 2607.25271: the 356-run constants behind the paper's heat maps",
        law=Law(
            name="qin2026-n356",
            E=1.335,
            A=187.0,
            B=17375.0,
            alpha=0.276,
            beta=0.4367,
            strategies={
                "repeat": Saturation(lnK=10.955, rho=-0.417, sigma=-0.415),
                "paraphrase": Saturation(lnK=31.024, rho=-1.538, sigma=-1.327),
            },
            support=_QIN_SUPPORT,
        ),
    ),
    "epoch2024": Preset(
        source="Besiroglu et al. 2024, arXiv 2404.10102: refit of Hoffmann et al. 2022; one epoch, no derived data",
        law=Law(
            name="epoch2024",
            E=1.8172,
            A=482.01,
            B=2085.43,
            alpha=0.3478,
            beta=0.3658,
            n_definition="all parameters as counted by Hoffmann et al. 2022",
        ),
    ),
    "muennighoff2023": Preset(
        source="Muennighoff et al. 2023, arXiv 2305.16264: C4, excess parameters and constant R*",
        law=Law(
            name="muennighoff2023",
            E=math.exp(0.6254804),
            A=math.exp(6.255414),
            B=math.exp(7.3049974),
            alpha=0.3526596,
            beta=0.3526596,
            strategies={"repeat": Saturation(lnK=math.log(15.39))},
            R_N=5.31,
            n_definition="all parameters as counted by Muennighoff et al. 2023",
        ),
    ),
}


def load_preset(name: str) -> Law:
    """The law published under a vintage name; UserError with the known names otherwise."""
    if name not in PRESETS:
        raise UserError("no such law", value=name, remedy=f"known are {', '.join(PRESETS)}, or a file of `eta fit`")
    return PRESETS[name].law


def preset_ensemble(name: str) -> Ensemble:
    """A published law with draws of it where there are some (qin2026-n370), without intervals otherwise.

    The draws are 400 cluster-bootstrap refits of the authors' 355 kept runs, moved so that they centre on the published
    constants (`python -m tests.bench.eta_presets` makes them).
    """
    law = load_preset(name)
    drawn = files("derivedata.scaling") / "presets" / f"{name}.json"
    if not drawn.is_file():
        return Ensemble(law=law)
    data = json.loads(drawn.read_text())
    parameters = Parameters(FORMS["published"], tuple(data["strategies"]), Centre(**data["centre"]))
    free = np.isin(parameters.names, data["parameters"])
    theta = np.repeat(parameters.from_law(law)[None], len(data["draws"]), axis=0)
    theta[:, free] = data["draws"]
    rest = {"name": law.name, "n_definition": law.n_definition, "support": law.support}
    return Ensemble(
        law=law,
        draws=tuple(parameters.to_law(vector, **rest) for vector in theta),
        interval="95% bootstrap over the (N, D) cells of the 355 runs",
    )
