"""The figures of the eta commands: arrays of the scaling room in the charts of the report room."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from derivedata.cli.eta import words
from derivedata.cli.quantity import shorten
from derivedata.errors import UserError
from derivedata.report.charts import Axis, Box, Curve, Edge, Points, Words, dots, heat, lines, scatter_by_group
from derivedata.report.style import FAINT, Picture, colour, shades
from derivedata.scaling import views
from derivedata.scaling.ensemble import Ensemble
from derivedata.scaling.plan import plan

if TYPE_CHECKING:
    from derivedata.report.page import Page
    from derivedata.scaling.holdout import HoldOut
    from derivedata.scaling.runs import Runs
    from derivedata.scaling.sufficiency import Sufficiency

# The same colour for a strategy in every figure.
_COLOURS = {"repeat": 0, "paraphrase": 1, "one epoch": 3}
N_AXIS = "parameters N (no input embedding, LM head counted)"
_NICE = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)


def save_all(pictures: Iterable[Picture], folder: str) -> list[str]:
    """Write PNG and SVG of each; the paths."""
    return [path for picture in pictures for path in picture.save(folder)]


def write_page(page: Page, output: str, pictures: Sequence[Picture], plots: str | None) -> None:
    """Write a page, and its pictures as files where a folder is named, and say so.

    Raises UserError when the page cannot be written.
    """
    try:
        Path(output).write_text(page.render())
    except OSError as error:
        raise UserError("cannot be written", where=output, value=error.strerror) from None
    words.say(f"written to {output}: {len(pictures)} figures")
    if plots:
        words.say(f"{len(save_all(pictures, plots))} figure files in {plots}")


def eta_pictures(ensemble: Ensemble, runs: Runs, noise: float | None = None) -> list[Picture]:
    """Eta against x with runs (of this scatter) and bands, then all runs on one curve, for each strategy."""
    found = []
    for strategy in runs.strategies:
        if strategy not in ensemble.law.strategies:
            continue
        found.append(_eta_against_x(ensemble, runs, strategy, noise))
        found.append(_eta_collapsed(ensemble, runs, strategy))
    return found


def _eta_against_x(ensemble: Ensemble, runs: Runs, strategy: str, noise: float | None) -> Picture:
    curves = views.eta_curves(ensemble, runs, strategy, noise=noise)
    tints = shades(len(curves))
    hidden = sum(curve.hidden for curve in curves)
    out = f" {hidden} more lie outside the frame or have no eta." if hidden else ""
    bands = " Bands are 95% intervals of the law." if curves[0].low is not None else ""
    return lines(
        Words(
            name=f"eta-x-{_slug(strategy)}",
            title=f"Eta of {strategy} against x at N = {shorten(curves[0].params)}",
            caption="Value of a derived token against a fresh one. Lines are the law, points are single runs with"
            f" standard errors.{bands}{out} Above 1 is normal: one run's eta is noisy.",
        ),
        Axis(label="x = derived / fresh tokens", log=True),
        Axis(label="eta", limits=(0, 1.75)),
        curves=[
            Curve(name=f"{c.tpp:.3g}", x=c.x, y=c.value, low=c.low, high=c.high, colour=t)
            for c, t in zip(curves, tints, strict=True)
        ],
        points=[
            Points(name="", x=c.run_x, y=c.run_eta, error=c.run_error, colour=t)
            for c, t in zip(curves, tints, strict=True)
        ],
        ordered=True,
        legend_title="tokens per parameter",
    )


def _eta_collapsed(ensemble: Ensemble, runs: Runs, strategy: str) -> Picture:
    one = views.collapse(ensemble, runs, strategy)
    out = (
        f" {one.hidden} of {one.hidden + len(one.eta)} runs lie outside the frame or have no eta." if one.hidden else ""
    )
    return lines(
        Words(
            name=f"eta-collapse-{_slug(strategy)}",
            title=f"All runs of {strategy} on one curve",
            caption="Eta against x/R*, with the R* that the law gives each run. The line is (1 - exp(-z))/z: if R* has"
            f" the right N and TPP dependence, runs of all sizes scatter around it.{out}",
        ),
        Axis(label="x / R*", log=True),
        Axis(label="eta", limits=views.SHOWN_ETA),
        curves=[Curve(name="law", x=one.curve_x, y=one.curve_eta, colour=FAINT)],
        points=[Points(name="runs", x=one.x_over_r, y=one.eta, colour=_tint(strategy, runs.strategies))],
    )


def field_pictures(ensemble: Ensemble, runs: Runs | None = None) -> list[Picture]:
    """R* over (N, TPP) for each strategy, and recommended epochs for repeats, the range of the data outlined."""
    law, found = ensemble.law, []
    support = law.support
    wide = (10e6, 10e9) if support is None else (support.N[0] / 1.5, max(10e9, 3 * support.N[1]))
    tpp = (1.0, 320.0) if support is None else (support.tpp[0] / 1.2, support.tpp[1] * 1.2)
    box = None if support is None else Box(x=support.N, y=support.tpp)
    outlined = "" if box is None else " Dashed: range of the runs behind the law; outside it is extrapolation."
    for strategy in law.strategies:
        field = views.r_star_field(law, strategy, params=wide, tpp=tpp)
        own = None
        if runs is not None and runs.of(strategy).any():
            mine = runs.take(runs.of(strategy))
            own = tuple(np.unique(np.stack([mine.N, mine.tpp]), axis=1))
        dotted = " Dots: trained (N, D)." if own is not None else ""
        reach = "The x at which the next derived token is worth 1/e of a fresh one, and the limit of eta x."
        panels = [("R*", field.value, f"r-star-{_slug(strategy)}", f"R* of {strategy}", reach)]
        if strategy == "repeat":
            reach = "1 + ln(10) R*: beyond it the next token is worth less than a tenth of a fresh one."
            panels.append(("recommended epochs", 1 + np.log(10) * field.value, "epochs", "Recommended epochs", reach))
        for bar, value, name, title, caption in panels:
            found.append(
                heat(
                    Words(name=name, title=title, caption=caption + outlined + dotted),
                    Axis(label=N_AXIS, log=True),
                    Axis(label="fresh tokens per parameter", log=True),
                    at_x=field.x,
                    at_y=field.y,
                    value=value,
                    levels=_levels(value),
                    bar=bar,
                    box=box,
                    dots=own,
                )
            )
    return found


def frontier_picture(
    ensemble: Ensemble,
    *,
    flops: tuple[float, float] = (1e18, 1e23),
    fresh_tokens: tuple[float, float] = (1e9, 1e12),
    strategies: Sequence[str] | None = None,
    generator_params: float = 0.0,
) -> Picture:
    """Iso-loss contours over FLOPs and fresh tokens with the frontier."""
    law = ensemble.law
    names = list(strategies or law.strategies)
    field = views.loss_field(
        law, flops=flops, fresh_tokens=fresh_tokens, strategies=names, generator_params=generator_params
    )
    value = field.loss.value
    step = next(s for s in (0.05, 0.1, 0.2, 0.25, 0.5, 1.0) if np.ptp(value) / s < 12)
    levels = np.arange(np.ceil(value.min() / step), np.floor(value.max() / step) + 1) * step
    edge = None
    if law.support is not None and field.params.value.min() < law.support.N[1] < field.params.value.max():
        name = f"best N = {shorten(law.support.N[1])}, extrapolated right of it"
        edge = Edge(value=field.params.value, level=law.support.N[1], name=name)
    generation = f", generation by {shorten(generator_params)} parameters counted" if generator_params else ""
    return heat(
        Words(
            name="frontier",
            title="Loss over compute and fresh data",
            caption=f"Least loss for a budget and a stock of fresh tokens, best N, x and strategy ({', '.join(names)}"
            f"{generation}). Along a contour compute and data are traded for one another.",
        ),
        Axis(label="FLOPs", log=True),
        Axis(label="fresh tokens D", log=True),
        at_x=field.loss.x,
        at_y=field.loss.y,
        value=value,
        levels=levels,
        bar="loss, nats a token",
        curves=[Curve(name="above it more data buys nothing", x=field.loss.x, y=field.enough)],
        edge=edge,
    )


def regime_picture(ensemble: Ensemble, *, params: float, fresh_tokens: float, generator_params: float = 0.0) -> Picture:
    """Loss against FLOPs for one model and its tokens, between the fresh-data curve, L_D and L_N."""
    curves = views.loss_curves(ensemble, params=params, fresh_tokens=fresh_tokens, generator_params=generator_params)
    law = ensemble.law
    stop = plan(Ensemble(law=law), params=params, fresh_tokens=fresh_tokens, generator_params=generator_params)
    ends = ", ".join(
        f"{name} {shorten(one.recommended.training_flops + one.recommended.generation_flops)}"
        for name, one in stop.strategies.items()
    )
    low = min(float(np.min(c.value if c.low is None else c.low)) for c in curves)
    limit = float(law.model_limit(params))
    top = float(law.loss(params, 0.25 * fresh_tokens))
    return lines(
        Words(
            name="regimes",
            title=f"Regimes of {shorten(params)} parameters with {shorten(fresh_tokens)} fresh tokens",
            caption="Between endless fresh tokens and a strategy's limit L_D a run is compute-bound, between L_D and"
            f" L_N data-bound, at L_N model-bound. Derived tokens fall below a tenth of their worth at (FLOPs) {ends}.",
        ),
        Axis(label="FLOPs for training and generation", log=True),
        Axis(label="loss, nats a token", limits=(min(low, limit) - 0.06, top)),
        curves=[
            Curve(
                name=c.strategy or "endless fresh tokens", x=c.flops, y=c.value, low=c.low, high=c.high,
                dashed=c.strategy is None, colour=_tint(c.strategy, law.strategies),
            )
            for c in curves
        ],
        levels=[
            *((float(law.data_limit(params, fresh_tokens, name)), f"L_D {name}") for name in law.strategies),
            (limit, "L_N"),
        ],
    )  # fmt: skip


def fit_pictures(ensemble: Ensemble, runs: Runs, left_out: Sequence[int] = ()) -> list[Picture]:
    """Parity, and residuals against x, by strategy; runs the fit left out are hollow."""
    law = ensemble.law
    known = (runs.Dp == 0) | np.isin(runs.strategy.astype(str), list(law.strategies))
    runs = runs.take(known)
    predicted = law.loss(runs.N, runs.D, runs.Dp, runs.strategy)
    residual = np.log(predicted) - np.log(runs.loss)
    out = np.isin(runs.row, left_out)
    kinds = {"one epoch": runs.Dp == 0, **{name: runs.of(name) for name in runs.strategies}}
    groups = [(name, mask & ~out, _tint(name, runs.strategies), False) for name, mask in kinds.items()]
    if out.any():
        groups.append(("left out of the fit", out, FAINT, True))
    rmse = float(np.sqrt(np.mean(residual[~out] ** 2)))
    parity = scatter_by_group(
        Words(name="parity", title="Predicted and measured loss",
              caption=f"One point a run; RMSE of ln L {rmse:.4f} over the {int((~out).sum())} runs fitted."),
        Axis(label="measured loss, nats a token", log=True),
        Axis(label="predicted loss, nats a token", log=True),
        groups=[Points(name=n, x=runs.loss[m], y=predicted[m], colour=c, hollow=h) for n, m, c, h in groups],
        diagonal=True,
    )  # fmt: skip
    derived = [(n, m & (runs.Dp > 0), c, h) for n, m, c, h in groups if (m & (runs.Dp > 0)).any()]
    against = scatter_by_group(
        Words(name="residuals", title="Residuals against x",
              caption="ln predicted - ln measured of the runs with derived tokens. A trend with x would mean that eta"
              " saturates in another way than the law says."),
        Axis(label="x = derived / fresh tokens", log=True),
        Axis(label="ln predicted - ln measured"),
        groups=[Points(name=n, x=runs.x[m], y=residual[m], colour=c, hollow=h) for n, m, c, h in derived],
        zero=True,
    )  # fmt: skip
    return [parity, against]


def hold_out_picture(made: Sequence[HoldOut], in_sample: float | None) -> Picture:
    """RMSE of rolling hold-outs, with coverage beside each."""
    rows = [
        (_short_numbers(one.label), one.rmse, f"{one.coverage:.0%} of {one.tested} covered")
        for one in made
        if not one.refused
    ]
    return dots(
        Words(
            name="hold-out",
            title="Rolling hold-out",
            caption="Each row is a fit to smaller runs only, scored on the next ones: RMSE of ln L, and the share of"
            " held-out runs inside their 95% prediction interval.",
        ),
        Axis(label="RMSE of ln L on held-out runs"),
        rows=rows,
        reference=None if in_sample is None else (in_sample, "in sample"),
    )


def sufficiency_picture(runs: Runs, metric: np.ndarray, name: str, found: Sufficiency) -> Picture:
    """The metric over validation loss, a colour a strategy: one curve for all is the claim."""
    points = []
    for strategy in ("one epoch", *runs.strategies):
        mine = (runs.Dp == 0) if strategy == "one epoch" else runs.of(strategy)
        points.append(Points(name=strategy, x=runs.loss[mine], y=metric[mine], colour=_tint(strategy, runs.strategies)))
    return lines(
        Words(
            name=f"sufficiency-{_slug(name)}",
            title=f"{name} over validation loss",
            caption="If validation loss is sufficient, runs of every strategy lie on the one curve of the runs on fresh"
            f" tokens alone (line). {found.runs} runs in {found.cells} (N, D) cells.",
        ),
        Axis(label="validation loss, nats a token"),
        Axis(label=name),
        curves=[Curve(name="fresh tokens alone", x=found.curve[0], y=found.curve[1], colour=FAINT)],
        points=points,
    )


def _tint(name: str | None, names: Iterable[str]) -> str:
    if name is None:
        return FAINT
    others = [other for other in names if other not in _COLOURS]
    return colour(_COLOURS[name] if name in _COLOURS else (2, 4, 5)[others.index(name) % 3])


def _short_numbers(text: str) -> str:
    return re.sub(r"\d[\d.]*e\+\d+", lambda found: shorten(float(found.group())), text)


def _levels(value: np.ndarray) -> list[float]:
    inside = [level for level in _NICE if value.min() < level < value.max()]
    while len(inside) > 8:
        inside = inside[::2]
    return inside or [float(np.median(value))]


def _slug(name: str) -> str:
    kept = "".join(c if c.isascii() and c.isalnum() else "-" for c in name.lower()).strip("-")
    return kept[:40] or "strategy"
