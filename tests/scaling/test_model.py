"""The model behind a fit: same values as the law, Jacobian as finite differences say."""

import numpy as np
import pytest

from derivedata.scaling.form import FORMS
from derivedata.scaling.law import Law, Saturation
from derivedata.scaling.model import Centre, Model, Parameters
from derivedata.scaling.runs import Runs
from derivedata.scaling.solver import huber, solve


@pytest.fixture(scope="module")
def runs():
    rng = np.random.default_rng(1)
    N, D = np.exp(rng.uniform(16, 21, 60)), np.exp(rng.uniform(17, 23, 60))
    x = np.where(rng.random(60) < 0.3, 0, np.exp(rng.uniform(-1, 4, 60)))
    return Runs(N=N, D=D, Dp=x * D, loss=rng.uniform(2, 6, 60), strategy=rng.choice(["repeat", "faq"], 60))


@pytest.mark.parametrize("form", FORMS)
def test_jacobian_agrees_with_finite_differences(runs, form):
    parameters = Parameters(FORMS[form], runs.strategies, Centre.of(runs))
    model, free = Model(runs, parameters), parameters.of_form()
    theta = parameters.default()
    theta[free] += np.random.default_rng(0).normal(0, 0.1, free.sum())
    _, jacobian = model.value_and_jacobian(theta)
    for i in np.flatnonzero(free):
        step = np.zeros(len(theta))
        step[i] = 1e-6
        numeric = (model.value(theta + step) - model.value(theta - step)) / 2e-6
        assert jacobian[i] == pytest.approx(numeric, abs=1e-7), parameters.names[i]


@pytest.mark.parametrize("form", FORMS)
def test_values_are_those_of_the_uncentred_law(runs, form):
    parameters = Parameters(FORMS[form], runs.strategies, Centre.of(runs))
    free, theta = parameters.of_form(), parameters.default()
    theta[free] += np.random.default_rng(2).normal(0, 0.1, free.sum())
    law = parameters.to_law(theta)
    predicted = law.loss(runs.N, runs.D, runs.Dp, runs.strategy)
    assert np.exp(Model(runs, parameters).value(theta)) == pytest.approx(predicted, rel=1e-9)
    assert parameters.from_law(law)[free] == pytest.approx(theta[free])


def test_batches_give_what_single_vectors_give(runs):
    parameters = Parameters(FORMS["published"], runs.strategies, Centre.of(runs))
    model = Model(runs, parameters)
    batch = parameters.default() + np.random.default_rng(3).normal(0, 0.05, (4, 1)) * parameters.of_form()
    values, jacobians = model.value_and_jacobian(batch)
    for one, value, jacobian in zip(batch, values, jacobians, strict=True):
        single = model.value_and_jacobian(one)
        assert single[0] == pytest.approx(value)
        assert single[1] == pytest.approx(jacobian)


def test_huber_is_quadratic_inside_and_linear_outside():
    assert huber(np.array([0.05, 0.3, -0.3]), 0.1) == pytest.approx([0.00125, 0.1 * 0.25, 0.1 * 0.25])


def test_the_solver_matches_scipy(runs):
    from scipy.optimize import least_squares

    truth = Law(
        E=1.7, A=400, B=2e3, alpha=0.34, beta=0.36, strategies={"repeat": Saturation(lnK=2), "faq": Saturation(lnK=1)}
    )
    scatter = np.random.default_rng(4).standard_t(2, len(runs)) * 0.01
    loss = truth.loss(runs.N, runs.D, runs.Dp, runs.strategy) * np.exp(scatter)
    runs = Runs(N=runs.N, D=runs.D, Dp=runs.Dp, loss=loss, strategy=runs.strategy)
    parameters = Parameters(FORMS["constant"], runs.strategies, Centre.of(runs))
    model, free = Model(runs, parameters), parameters.of_form()
    start = parameters.from_law(truth)

    def residual(z):
        theta = start.copy()
        theta[free] = z
        return model.value(theta) - model.lnloss

    theirs = least_squares(residual, start[free], loss="huber", f_scale=0.01, xtol=1e-12, ftol=1e-12, gtol=1e-12)
    ours = solve(model, start, free=free, delta=0.01, weight=runs.weight)
    assert ours.converged.all()
    assert ours.objective[0] == pytest.approx(theirs.cost, rel=1e-6)


def test_a_bound_stops_a_parameter_and_the_rest_is_still_solved(runs):
    parameters = Parameters(FORMS["constant"], runs.strategies, Centre.of(runs))
    parameters.high[3] = 0.2
    truth = Law(
        E=1.7, A=400, B=2e3, alpha=0.34, beta=0.36, strategies={"repeat": Saturation(lnK=2), "faq": Saturation(lnK=1)}
    )
    loss = truth.loss(runs.N, runs.D, runs.Dp, runs.strategy)
    model = Model(Runs(N=runs.N, D=runs.D, Dp=runs.Dp, loss=loss, strategy=runs.strategy), parameters)
    solution = solve(model, parameters.default(), free=parameters.of_form(), delta=0.1, weight=runs.weight)
    assert solution.converged.all()
    assert solution.theta[0, 3] == 0.2
