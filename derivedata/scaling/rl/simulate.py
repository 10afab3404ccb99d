"""A toy of RL on problems with latent difficulties, on which findings can be shown and the planner tested.

Problem i is answered rightly with probability p_i = logistic(a_i . theta - d_i + m_i): theta are the skills that
training moves, d_i is the difficulty, a_i says which skills the problem needs, m_i what was learnt by heart of this
problem alone (held-out problems have none). All a_i share a common part, so that learning transfers, and differ in
the rest, where problems pull against each other: that is interference, and it drives some pass rates to 0 while the
mean rises.

One step draws B_p problems and n answers to each, k_i ~ Binomial(n, p_i), and moves theta as GRPO does on average:

    theta += lr sqrt(B/1024) (mean_i (s_i a_i + [s_i > 0] noise_i / sqrt(n)) - pull theta)
    s_i = sqrt(k_i/n (1 - k_i/n))

s_i a_i is the gradient of problem i with advantages divided by their deviation; groups all right or all wrong have
none. noise_i (normal, `noise` a skill) is what sampled tokens add at random; `pull` draws back to the start, as a KL
term does. Few rollouts make many steps, which is fast at first. Many rollouts find rare answers, so a step holds more
signal against the pull, and training ends higher: n*(C) rises with the budget and levels off, as in the IsoCompute
Playbook (arXiv 2603.12151). The true optimum is known by averaging runs. It is a toy: its constants were chosen to
have the optimum inside n = 4...256, and no figure of it says anything of a language model.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from derivedata.errors import UserError


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """A set of problems and how training acts on it.

    Args:
        problems, held_out: how many are trained on, and how many are evaluated.
        skills: length of theta.
        difficulty, spread: mean and standard deviation of d_i.
        shared: the common part of a_i; own: standard deviation of the rest, where problems pull apart.
        lr: step at B = 1024; noise, pull: see the module; memory: how much faster a problem itself is learnt.
        seed: of the problems.
    """

    problems: int = 512
    held_out: int = 300
    skills: int = 8
    difficulty: float = 2.5
    spread: float = 1.2
    shared: float = 0.5
    own: float = 1.0
    lr: float = 1.0
    noise: float = 1.0
    pull: float = 0.03
    memory: float = 0.02
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("problems", "held_out", "skills"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} of a world is 1 or more", value=getattr(self, name))

    def build(self) -> tuple[NDArray, NDArray, NDArray, NDArray]:
        """Needs (problems, skills) and difficulties (problems,) to train on, then those held out."""
        rng = np.random.default_rng(self.seed)
        count = self.problems + self.held_out
        need = self.shared / np.sqrt(self.skills) + rng.normal(0, self.own / np.sqrt(self.skills), (count, self.skills))
        hard = rng.normal(self.difficulty, self.spread, count)
        cut = self.problems
        return need[:cut], hard[:cut], need[cut:], hard[cut:]


# Mean pass rate before training: .12 and .37.
WORLDS = {"hard": World(), "easy": World(difficulty=0.8, spread=1.5, pull=0.04)}


@dataclass(slots=True)
class Trace:
    """What runs of one (B_p, n) showed; the first axis is the run.

    C: (points,) rollouts at each evaluation, 0 first. p: (runs, points, held_out) true chances of the held-out
    problems, trained: (runs, points, problems) those of the trained ones. steps: for the log, a dict a step; groups:
    (step, problems, k) of some steps.
    """

    problems_per_batch: int
    n: int
    C: NDArray
    p: NDArray
    trained: NDArray
    steps: list[dict] = field(default_factory=list)
    groups: list[tuple[int, NDArray, NDArray]] = field(default_factory=list)

    @property
    def reward(self) -> NDArray:
        """Expected avg@k on the held-out problems (runs, points)."""
        return self.p.mean(-1)


def train(
    worlds: list[World],
    *,
    n: int,
    problems_per_batch: int,
    budget: float,
    evaluations: int = 24,
    seed: int = 0,
    log: bool = False,
) -> Trace:
    """Train one run in each world (worlds of equal size run side by side).

    Args:
        n, problems_per_batch: rollouts a problem, problems a batch.
        budget: rollouts in all; whole steps that fit are made.
        evaluations: how many, evenly in ln C, besides the one before training.
        log: keep steps and groups (for the first world only).

    Raises:
        UserError: the budget does not fit one step, or groups of one.
    """
    batch = n * problems_per_batch
    total = int(budget // batch)
    if n < 2:
        raise UserError("n = 1 has no group to compare with", value=n, remedy="take n of 2 or more")
    if total < 1:
        raise UserError("the budget fits no step", value=f"{budget:g} rollouts", remedy=f"one step takes {batch}")
    rng = np.random.default_rng((seed, n, problems_per_batch))
    need, hard, held_need, held_hard = (np.array(part) for part in zip(*(w.build() for w in worlds), strict=True))
    first = worlds[0]
    runs, size, skills = need.shape
    theta, memory = np.zeros((runs, skills)), np.zeros((runs, size))
    rate = first.lr * np.sqrt(batch / 1024)
    # At most this many rows of groups are kept, evenly over the run.
    stride = max(1, total * problems_per_batch // 20_000)
    marks = {0, *np.unique(np.round(np.geomspace(max(1, total / 200), total, evaluations)).astype(int)).tolist()}
    trace = Trace(problems_per_batch, n, np.array(sorted(marks), float) * batch, np.empty(0), np.empty(0))
    held, trained = [], []
    row = np.arange(runs)[:, None]
    for step in range(total + 1):
        if step in marks:
            held.append(expit((held_need @ theta[..., None])[..., 0] - held_hard))
            trained.append(expit((need @ theta[..., None])[..., 0] - hard + memory))
        if step == total:
            break
        which = rng.integers(0, size, (runs, problems_per_batch))
        a = need[row, which]
        p = expit((a @ theta[..., None])[..., 0] - hard[row, which] + memory[row, which])
        k = rng.binomial(n, p)
        share = k / n
        s = np.sqrt(share * (1 - share))
        random = rng.normal(0, first.noise / np.sqrt(n), a.shape) * (s > 0)[..., None]
        theta += rate * ((s[..., None] * a + random).mean(1) - first.pull * theta)
        np.add.at(memory, (row, which), rate * first.memory * s)
        if log:
            trace.steps.append(_logged(step + 1, batch, p[0], k[0], theta[0], n, problems_per_batch))
            if step % stride == 0:
                trace.groups.append((step + 1, which[0], k[0]))
    trace.p, trace.trained = np.swapaxes(held, 0, 1), np.swapaxes(trained, 0, 1)
    return trace


def _logged(step: int, batch: int, p: NDArray, k: NDArray, theta: NDArray, n: int, problems: int) -> dict:
    """A step as a trainer logs it; what a toy has not (length, tokens) is null."""
    inside = np.clip(p, 1e-12, 1 - 1e-12)
    entropy = -(inside * np.log(inside) + (1 - inside) * np.log(1 - inside))
    return {
        "step": step,
        "B_p": problems,
        "n": n,
        "rollouts": step * batch,
        "tokens": None,
        "reward": float(k.mean() / n),
        "entropy": float(entropy.mean()),
        "kl": float(0.01 * (theta**2).sum()),
        "length": None,
        "truncated": None,
        "zero_variance": float(((k == 0) | (k == n)).mean()),
        "dropped": 0,
        "retired": 0,
    }


def measured(trace: Trace, *, k: int = 4, seed: int = 0) -> dict[str, NDArray]:
    """Evaluations as a trainer would log them: avg@k, best@k and worst@k from k answers to each held-out problem.

    Arrays (runs, points), noisy as k answers are.
    """
    rng = np.random.default_rng((seed, trace.n, trace.problems_per_batch, 1))
    right = rng.binomial(k, trace.p)
    return {"avg": (right / k).mean(-1), "best": (right > 0).mean(-1), "worst": (right == k).mean(-1)}


def true_optimum(rewards: dict[int, tuple[NDArray, NDArray]], at: float) -> tuple[int, dict[int, float]]:
    """The best n at a compute, and the reward of each n there.

    Args:
        rewards: n -> (C, mean reward over many runs), both (points,). Each n is read inside its own range only.
        at: compute, rollouts.
    """
    found = {
        n: float(np.interp(np.log(at), np.log(np.maximum(C, 1)), reward))
        for n, (C, reward) in rewards.items()
        if C[C > 0].min() <= at <= C.max() * 1.05
    }
    return max(found, key=found.__getitem__), found
