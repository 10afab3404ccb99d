"""A calibration as plain JSON values, and the law with its draws back from them."""

from __future__ import annotations

from collections.abc import Mapping

from derivedata.errors import UserError
from derivedata.scaling.calibrate import Calibration
from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.law import Law, Saturation, Support

KIND = "derivedata eta calibration 1"
_BACKBONE = ("E", "A", "B", "alpha", "beta")
_SATURATION = ("lnK", "rho", "sigma")


def calibration_to_dict(found: Calibration, *, runs: Mapping[str, object]) -> dict:
    """JSON values of a calibration; `runs` describes the runs behind it (count, hash).

    Only the published form of the law is written: backbone, and lnK, rho, sigma of each strategy.
    """
    law = found.ensemble.law
    support = None if law.support is None else {
        "N": list(law.support.N), "tpp": list(law.support.tpp), "x": dict(law.support.x)
    }  # fmt: skip
    return {
        "kind": KIND,
        "name": law.name,
        "strategy": found.strategy,
        "n_definition": law.n_definition,
        "interval": found.ensemble.interval,
        "runs": dict(runs),
        "target": {"params": found.params, "fresh_tokens": found.fresh_tokens},
        "r_star": [found.r_star.value, found.r_star.low, found.r_star.high],
        "sd_ln_r": {"prior": found.sd_prior, "posterior": found.sd},
        "data_share": found.data_share,
        "misfit": found.misfit,
        "warnings": list(found.warnings),
        "constants": ["E", "A", "B", "alpha", "beta", *(f"{n}[{s}]" for s in law.strategies for n in _SATURATION)],
        "strategies": list(law.strategies),
        "law": _row(law, list(law.strategies)),
        "draws": [_row(one, list(law.strategies), digits=6) for one in found.ensemble.draws],
        "support": support,
    }


def calibration_from_dict(data: Mapping) -> Ensemble:
    """The law and its draws of a dict made by `calibration_to_dict`; UserError when it is something else."""
    if data.get("kind") != KIND:
        raise UserError("not a calibration of `derivedata eta calibrate`", value=data.get("kind"))
    names = [str(name) for name in data["strategies"]]
    support = data["support"]
    rest = {
        "name": data["name"],
        "n_definition": data["n_definition"],
        "support": None
        if support is None
        else Support(N=tuple(support["N"]), tpp=tuple(support["tpp"]), x=support["x"]),
    }
    return Ensemble(
        law=_law(data["law"], names, rest),
        draws=tuple(_law(row, names, rest) for row in data["draws"]),
        interval=data["interval"],
    )


def _row(law: Law, strategies: list[str], digits: int = 12) -> list[float]:
    """The constants in the order of `strategies`: a draw may list its own in another."""
    values = [getattr(law, name) for name in _BACKBONE]
    values += [getattr(law.strategies[s], name) for s in strategies for name in _SATURATION]
    return [float(f"{value:.{digits}g}") for value in values]


def _law(row: list[float], names: list[str], rest: dict) -> Law:
    if len(row) != len(_BACKBONE) + len(_SATURATION) * len(names):
        raise ValueError(f"a draw of {len(row)} constants")
    at = len(_BACKBONE)
    strategies = {
        name: Saturation(**dict(zip(_SATURATION, row[at + 3 * i : at + 3 * i + 3], strict=True)))
        for i, name in enumerate(names)
    }
    return Law(**dict(zip(_BACKBONE, row[:at], strict=True)), strategies=strategies, **rest)
