"""The figures of the rl commands: curves and their extrapolation, the frontier by n, n*(C), maps, histograms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from derivedata.cli.quantity import shorten
from derivedata.report.cells import cells
from derivedata.report.charts import Axis, Curve, Points, Words, lines
from derivedata.report.style import FAINT, INK, Picture, colour, shades

if TYPE_CHECKING:
    from derivedata.scaling.rl.fit import CurveFit
    from derivedata.scaling.rl.interference import Interference
    from derivedata.scaling.rl.plan import Plan

C_AXIS = "C, rollouts (or what the table counts)"
MOST_PICTURES = 12


def curve_pictures(fits: Sequence[CurveFit], metric: str = "avg") -> list[Picture]:
    """Each run with its fit, its band to twice the compute, and the power law; then all runs together."""
    found = [_one_curve(fit, metric) for fit in fits[:MOST_PICTURES]]
    if 1 < len(fits) <= MOST_PICTURES:
        found.insert(0, _all_curves(fits, metric))
    return found


def _one_curve(fit: CurveFit, metric: str) -> Picture:
    seen = fit.curve.C > 0
    used = seen & (fit.skipped_below <= fit.curve.C) & (fit.largest >= fit.curve.C)
    inside = np.geomspace(max(fit.skipped_below, fit.curve.C[seen].min()), fit.largest, 60)
    end = max(fit.forecast_C, float(fit.curve.C.max()))
    beyond = np.geomspace(fit.largest, end, 25)
    value, low, high = fit.band(beyond)
    few = np.geomspace(inside[0], fit.largest, 16)
    _, under, over = fit.band(few)
    a = "no asymptote" if fit.asymptote is None else f"A = {fit.asymptote.value:.3f}"
    left = "Hollow points were not fitted. " if (seen & ~used).any() else ""
    flags = f" Flags: {'; '.join(fit.flags)}." if fit.flags else ""
    every = np.concatenate([fit.curve.reward, high])
    return lines(
        Words(
            name=f"curve-{_slug(fit.curve.run)}",
            title=f"{fit.curve.run}: {a}, C_mid = {shorten(fit.law.C_mid)}",
            caption=f"{left}Dashed: extrapolation with its 95% interval, and a power law.{flags}",
        ),
        Axis(label=C_AXIS, log=True),
        Axis(label=metric, limits=(max(0.0, float(every.min()) - 0.03), min(1.02, float(every.max()) + 0.04))),
        curves=[
            Curve(name="sigmoid", x=inside, y=fit.law.reward(inside), colour=colour(0)),
            Curve(name="", x=few, y=fit.law.reward(few), low=under, high=over, colour=colour(0)),
            Curve(name="extrapolated", x=beyond, y=value, low=low, high=high, dashed=True, colour=colour(0)),
            Curve(name="power law", x=np.append(inside, beyond), y=fit.power.reward(np.append(inside, beyond)),
                  dashed=True, colour=FAINT),
        ],
        points=[
            Points(name="", x=fit.curve.C[used], y=fit.curve.reward[used], colour=INK),
            Points(name="", x=fit.curve.C[seen & ~used], y=fit.curve.reward[seen & ~used], colour=INK, hollow=True),
        ],
    )  # fmt: skip


def _all_curves(fits: Sequence[CurveFit], metric: str) -> Picture:
    drawn = []
    for i, fit in enumerate(fits):
        inside = np.geomspace(max(fit.skipped_below, fit.curve.C[fit.curve.C > 0].min()), fit.largest, 60)
        beyond = np.geomspace(fit.largest, fit.forecast_C, 20)
        drawn.append(Curve(name=fit.curve.run, x=inside, y=fit.law.reward(inside), colour=colour(i)))
        drawn.append(Curve(name="", x=beyond, y=fit.law.reward(beyond), dashed=True, colour=colour(i)))
    return lines(
        Words(name="curves", title="All runs", caption="Dashed: extrapolation to twice the largest C fitted."),
        Axis(label=C_AXIS, log=True),
        Axis(label=metric),
        curves=[c for c in drawn if c.name] + [c for c in drawn if not c.name],
    )


def plan_pictures(advice: Plan) -> list[Picture]:
    """The frontier by n, n*(C), and the map of (B_p, n) where several B_p were tried."""
    found = [_frontier(advice), _best_n(advice)]
    if len({cell.problems for cell in advice.cells}) > 1:
        found.append(_map(advice))
    return found


def _frontier(advice: Plan) -> Picture:
    tints = shades(len(advice.groups))
    drawn = []
    for group, tint in zip(advice.groups, tints, strict=True):
        C = np.geomspace(group.low, group.high, 60)
        drawn.append(Curve(name=f"n = {group.n}", x=C, y=group.at(C), colour=tint))
    return lines(
        Words(
            name="frontier",
            title=f"{advice.metric} against compute by n",
            caption="Points are evaluations, lines the sigmoid of each n with its best B_p. The dark dashed line is the"
            " frontier: the best n at every C that two n or more have been trained to.",
        ),
        Axis(label="C, rollouts", log=True),
        Axis(label=advice.metric),
        curves=[*drawn, Curve(name="frontier", x=advice.frontier.C, y=advice.frontier.reward, dashed=True, colour=INK)],
        points=[
            Points(name="", x=one.all_C, y=one.all_reward, colour=tint)
            for group, tint in zip(advice.groups, tints, strict=True)
            for one in group.members
        ],
    )


def _best_n(advice: Plan) -> Picture:
    edge = advice.frontier
    curves = [
        Curve(name="best n on the frontier", x=edge.C, y=edge.n.astype(float), colour=colour(0)),
        Curve(name="peak between the n", x=edge.C[edge.risen], y=edge.peak[edge.risen], colour=colour(2)),
    ]
    if advice.best_n is not None:
        C = np.geomspace(edge.C[0], max(edge.C[-1], min(advice.budget, edge.C[-1] * 10)), 120)
        curves.append(Curve(name="n*(C), fitted", x=C, y=advice.best_n.n(C), dashed=True, colour=colour(1)))
    low, high = advice.groups[0].n, advice.groups[-1].n
    at = min(advice.budget, edge.C[-1] * 10)
    return lines(
        Words(
            name="best-n",
            title=f"n* against compute; {advice.n.value:g} for {shorten(advice.budget)} rollouts",
            caption=f"n from {low} to {high} were tried: nothing is said outside."
            + (f" Flags: {'; '.join(advice.flags)}." if advice.flags else ""),
        ),
        Axis(label="C, rollouts", log=True),
        Axis(label="rollouts a problem n", log=True, limits=(low / 1.3, high * 1.3)),
        curves=curves,
        points=[
            Points(name="advice, with what is possible", x=np.array([at]), y=np.array([advice.n.value]), colour=INK,
                   error=np.array([[advice.n.value - advice.n.low], [advice.n.high - advice.n.value]])),
        ],
    )  # fmt: skip


def _map(advice: Plan) -> Picture:
    ns, batches = sorted({c.n for c in advice.cells}), sorted({c.problems for c in advice.cells})
    value = np.full((len(batches), len(ns)), np.nan)
    for cell in advice.cells:
        value[batches.index(cell.problems), ns.index(cell.n)] = cell.reward.value
    chosen = (batches.index(advice.problems), ns.index(int(advice.n.value))) if (
        advice.problems in batches and int(advice.n.value) in ns
    ) else None  # fmt: skip
    held = "" if advice.batch is None else f" at B = {advice.batch}"
    return cells(
        Words(
            name="map",
            title=f"{advice.metric} by (B_p, n){held} after {shorten(advice.read_at)} rollouts",
            caption="Every cell has spent the same rollouts. Cells along a falling diagonal share B = B_p n, and so the"
            " number of steps. The frame is the advice.",
        ),
        across=("rollouts a problem n", [str(n) for n in ns]),
        up=("problems a batch B_p", [str(b) for b in batches]),
        value=value,
        write=lambda v: f"{v:.3f}",
        bar=advice.metric,
        mark=chosen,
    )


def histogram_picture(run: str, found: Interference) -> Picture:
    """Share of the problems by pass rate, over the windows of training."""
    from derivedata.scaling.rl.interference import LABELS

    ends = zip(found.steps[:-1], found.steps[1:], strict=True)
    spans = [f"{first:.0f}-{max(last - 1, first):.0f}" for first, last in ends]
    fell = (
        f" Of {found.compared} problems solved in the first window {found.fallen:.0%} fell to 0 in the last"
        f" ({found.by_chance:.0%} by chance alone)."
        if found.compared
        else ""
    )
    return cells(
        Words(
            name=f"pass-rates-{_slug(run)}",
            title=f"{run}: pass rates of single problems over time",
            caption=f"Share of the problems met in each window, in percent, by their pass rate in it.{fell}",
        ),
        across=("steps", spans),
        up=("pass rate", LABELS),
        value=100 * found.histogram.T,
        write=lambda v: f"{v:.0f}",
        bar="% of problems",
    )


def _slug(name: str) -> str:
    kept = re.sub(r"-+", "-", "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower())).strip("-")
    return kept[:60] or "run"
