"""The verifier as a reward: a plain function with GRPOTrainer's signature.

    from derivedata.trainers.rewards import math_reward
    GRPOTrainer(model, reward_funcs=math_reward, train_dataset=dataset, ...)     # columns: prompt, answer

An answer that can't be checked within its deadline earns what a wrong one earns: the checks run in processes that are
killed and replaced, so no answer can stop a run.
"""

from __future__ import annotations

import atexit
import math
from collections.abc import Callable, Sequence
from typing import Any

from derivedata.errors import UserError
from derivedata.problems.verifier import Verifier
from derivedata.problems.workers import WorkerLimits

Reward = Callable[..., list[float]]


def completion_text(completion: object) -> str:
    """The text of a completion: a string, or the content of a conversation's last message."""
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else ""
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content or ""


def verified_reward(
    *, answers: str = "lenient", wrong: float = 0.0, right: float = 1.0, form: str = "boxed", workers: int = 1
) -> Reward:
    """A reward function that checks answers in a verifier of its own; its processes start with the first hard answer.

    Args:
        answers: how the answer is found: strict, lenient, last-number or math-verify.
        wrong: reward of everything that is not known to be right.
        right: reward of a right answer.
        form: the demanded form, for strict (boxed or hashes).
        workers: processes for answers that plain comparison can't decide; 0: one a CPU.
    """
    verifier = Verifier(answers=answers, limits=WorkerLimits(workers=workers))
    atexit.register(verifier.close)

    def math_reward(
        prompts: Sequence[Any], completions: Sequence[Any], answer: Sequence[Any] | None = None, **_: Any
    ) -> list[float]:
        """One reward a completion.

        Args:
            prompts: not looked at.
            completions: strings or conversations.
            answer: the gold answer of each completion, from the data set's column of that name.

        Raises:
            UserError: there is no column `answer`, or a row of it holds no answer.
        """
        if answer is None:
            raise UserError("the problems have no column `answer`", remedy="name the gold answers `answer`")
        pairs = ((gold, completion_text(text)) for gold, text in zip(answer, completions, strict=True))
        return [right if verdict.correct else wrong for verdict in verifier.verify_many(pairs, form=form)]

    return math_reward


def math_reward(prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float]:
    """1 for each completion whose answer is right, else 0; answers are found leniently (see `verified_reward`)."""
    if "reward" not in _shared:
        _shared["reward"] = verified_reward()
    return _shared["reward"](prompts, completions, **columns)


_shared: dict[str, Reward] = {}


def check_rewards(rewards: Sequence[float | None], low: float, high: float, *, where: str = "reward") -> None:
    """Refuse rewards outside their range; None and NaN (not scored) pass.

    Raises:
        UserError: a reward is infinite or outside [low, high].
    """
    for reward in rewards:
        if reward is None or math.isnan(reward):
            continue
        if not low <= reward <= high:
            raise UserError(f"a reward is outside [{low:g}, {high:g}]", where=where, value=reward)
