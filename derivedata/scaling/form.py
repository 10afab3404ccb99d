"""Forms of the law that can be fitted: the published one, its special cases, and alternatives that go beyond it.

`FORMS["published"]` is arXiv 2607.25271. Which form wins where is in pipelines/eta.md, made by `tests.bench.eta_forms`.
"""

from __future__ import annotations

from dataclasses import dataclass

from derivedata.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """What of a `Law` is free in a fit.

    Args:
        name: how the form is asked for and reported.
        about: one line on what it says.
        power: whether rho and sigma are free (R* a power law of D/N and N) or 0 (constant R*).
        tail: fixed tail of the saturation (0 exponential, 1 hyperbola), or None to fit one a strategy.
        worth: whether the value of the first derived token is free (1 otherwise).
        drift: whether R* has a free exponent of (1 + x).
        offset: whether D0 tokens are added to D_eff (a loss that stays finite for little data).
        overfit: whether an overfitting term G x^p (N/D)^q is added.
        excess: whether Muennighoff's excess-parameter constant R_N is fitted.
    """

    name: str
    about: str
    power: bool = True
    tail: float | None = 0.0
    worth: bool = False
    drift: bool = False
    offset: bool = False
    overfit: bool = False
    excess: bool = False


FORMS: dict[str, Form] = {
    form.name: form
    for form in (
        Form(name="published", about="E + A/N^alpha + B/(D + eta D')^beta, R* a power law of D/N and N"),
        Form(
            name="constant",
            about="one R* for all N and D (Muennighoff et al. 2023 without excess parameters)",
            power=False,
        ),
        Form(
            name="muennighoff",
            about="constant R* and excess parameters R_N (Muennighoff et al. 2023)",
            power=False,
            excess=True,
        ),
        Form(name="offset", about="D0 tokens added to D_eff: the loss stays finite for little data", offset=True),
        Form(name="hyperbola", about="eta x = R x/(R + x): value fades as a hyperbola, not exponentially", tail=1.0),
        Form(
            name="tail",
            about="heaviness of the tail of eta fitted for each strategy (0 exponential, 1 hyperbola)",
            tail=None,
        ),
        Form(name="drift", about="R* grows or shrinks with x: exponent of (1 + x) for each strategy", drift=True),
        Form(name="worth", about="first derived token worth w, not 1, fitted for each strategy", worth=True),
        Form(
            name="offset-worth",
            about="D0 tokens added to D_eff, and a first derived token worth w",
            offset=True,
            worth=True,
        ),
        Form(name="overfit", about="loss rises again with many epochs: G x^p (N/D)^q added", overfit=True),
    )
}


def form_by_name(name: str) -> Form:
    """The form of that name; UserError with the known ones otherwise."""
    if name not in FORMS:
        raise UserError("no such form of the law", value=name, remedy=f"known are {', '.join(FORMS)}")
    return FORMS[name]
