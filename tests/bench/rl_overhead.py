"""What our hooks and logs add to a step of TRL's trainer, as a share of the step: `python -m tests.bench.rl_overhead`.

A random 0.9M Llama, 16 problems x 4 rollouts of up to 48 tokens, the scalerl recipe: the step is as short as a real one
gets, so the share is an upper bound. The verifier is told apart, since every trainer needs a reward.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections import Counter
from pathlib import Path

from derivedata.trainers import rl_hooks
from derivedata.trainers.rl import train_rl
from derivedata.trainers.rl_log import RolloutLogCallback
from derivedata.trainers.rl_options import RLOptions
from derivedata.trainers.rl_study_model import split, sums, write_model, write_splits

STEPS = 20
_OURS = {
    rl_hooks.RecipeGRPOTrainer: ("_draw", "_remember", "_shaped"),
    RolloutLogCallback: ("_take", "on_step_end", "on_log", "on_step_begin"),
    rl_hooks: ("in_order", "check_rewards"),
}


def timed(seconds: Counter, name: str, function):
    """The function, whose time is added up under a name."""

    @functools.wraps(function)
    def wrapper(*args, **named):
        began = time.perf_counter()
        try:
            return function(*args, **named)
        finally:
            seconds[name] += time.perf_counter() - began

    return wrapper


def main() -> None:
    import numpy as np

    from derivedata.trainers.rewards import verified_reward

    seconds: Counter = Counter()
    for place, names in _OURS.items():
        for name in names:
            setattr(place, name, timed(seconds, name, getattr(place, name)))
    train = timed(seconds, "step", rl_hooks.GRPOTrainer.training_step)
    rl_hooks.GRPOTrainer.training_step = train
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        problems = sums(400, seed=0)
        write_splits(place, split(problems, np.full(400, 7), k=16, validation=0))
        options = RLOptions(
            problems=(str(place / "easy.parquet"),),
            model=str(write_model(place / "model", width=128, layers=4)),
            output=str(place / "run"),
            recipe="scalerl",
            staleness=0,
            thinking_tokens=0,
            problems_per_batch=16,
            rollouts=4,
            iterations=STEPS,
            max_tokens=48,
            cpu=True,
        )
        reward = timed(seconds, "verifier", verified_reward(wrong=-1.0))
        train_rl(options, reward=reward)
    step = seconds.pop("step")
    verifier = seconds.pop("verifier")
    ours = sum(seconds.values())
    print(f"{STEPS} steps of {step / STEPS:.3f} s; hooks and logs {ours / step:.2%}, verifier {verifier / step:.2%}")
    for name, value in seconds.most_common():
        print(f"  {name:<14} {value / step:.3%}")


if __name__ == "__main__":
    main()
