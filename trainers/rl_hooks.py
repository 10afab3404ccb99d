"""TRL's GRPOTrainer with what the recipes need beyond it: the only module that overrides its methods.

Everything that TRL has (losses, KL, entropy, FP32 head, importance weights, vLLM) is TRL's. Overridden are: where
problems come from, the order of a round's rollouts, advantages, and the forced end of thinking. `HOOKS` states the
signatures that this rests on; a test compares them with the installed TRL.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from trl import GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from derivedata.errors import UserError
from derivedata.trainers.rewards import check_rewards
from derivedata.trainers.rl_groups import batch_advantages, has_spread, prompt_weights
from derivedata.trainers.rl_log import step_rows, steps_of_a_round
from derivedata.trainers.rl_recipes import Recipe
from derivedata.trainers.rl_stream import ProblemStream
from derivedata.trainers.rl_thinking import ThinkingLimit

STATE = "derivedata.json"
HOOKS = {
    "_calculate_rewards": "(self, inputs, prompts, completions, completion_ids_list)",
    "_generate": "(self, prompts: list)",
    "_generate_and_score_completions": "(self, inputs: list[dict[str, torch.Tensor | typing.Any]])"
    " -> dict[str, torch.Tensor | typing.Any]",
    "_generate_single_turn": "(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False)",
    "_prepare_inputs": "(self, generation_batch: dict[str, torch.Tensor | typing.Any])"
    " -> dict[str, torch.Tensor | typing.Any]",
    "_save_checkpoint": "(self, model, trial)",
}


class RecipeGRPOTrainer(GRPOTrainer):
    """GRPOTrainer that draws from a `ProblemStream` and shapes advantages as a `Recipe` says.

    Args:
        recipe: advantages, averaging, dropped groups, range of the rewards.
        stream: draws the problems.
        rows: the problems by row of the stream: `prompt`, `answer`, `uid`.
        thinking: forced end of thinking, or None.
        **trainer: GRPOTrainer's arguments; its train_dataset only drives the loop (see `loop_rows`).
    """

    def __init__(
        self,
        *,
        recipe: Recipe,
        stream: ProblemStream,
        rows: list[dict[str, Any]],
        thinking: ThinkingLimit | None = None,
        **trainer,
    ):
        super().__init__(**trainer)
        self.recipe, self.stream, self.rows, self.thinking = recipe, stream, rows, thinking
        self.rounds = steps_of_a_round(self.args)
        self._drawn: list[list[int]] = []
        self._rewards: torch.Tensor | None = None
        self._unordered = False
        self._forced: list[int] = []
        world = self.accelerator.num_processes
        if self.rounds > 1 and self.stream.batch % world:
            raise UserError(
                "with staleness every process needs whole groups of each step",
                where="--problems-per-batch",
                value=f"{self.stream.batch} on {world} processes",
            )

    # -- problems and their order ------------------------------------------------------------------------------

    def _draw(self) -> list[dict[str, Any]]:
        """This process's rows of a round: by optimizer step, each problem n times."""
        n, world, rank = self.num_generations, self.accelerator.num_processes, self.accelerator.process_index
        self._drawn = [self.stream.draw() for _ in range(self.rounds)]
        share = self.stream.batch * n // world
        return [
            dict(self.rows[row])
            for rows in self._drawn
            for row in [row for row in rows for _ in range(n)][rank * share : (rank + 1) * share]
        ]

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        if self._unordered:
            # TRL mixes the rollouts of a round. Put back in order, each optimizer step has whole groups: its own B_p
            # problems, all answered by the same policy.
            self._unordered = False
            self._buffered_inputs = in_order(self._buffered_inputs)
            inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return inputs

    # -- rewards and advantages --------------------------------------------------------------------------------

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        total = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)
        total[torch.isnan(rewards).all(dim=1)] = torch.nan
        check_rewards(total.tolist(), *self.recipe.rewards)
        self._rewards = total
        return rewards

    def _generate_and_score_completions(self, inputs):
        if not self.model.training:
            return super()._generate_and_score_completions(inputs)
        output = super()._generate_and_score_completions(self._draw())
        rows = step_rows(len(self._rewards), self.rounds, self.accelerator.num_processes)
        self._remember(rows)
        if self.recipe.advantages == "batch" or self.recipe.average == "prompt":
            output["advantages"] = self._shaped(output, rows)
        output["order"] = torch.arange(len(output["advantages"]), device=self.accelerator.device)
        self._unordered = True
        return output

    def _remember(self, rows) -> None:
        middle = sum(self.recipe.rewards) / 2
        n = self.num_generations
        for step, problems in zip(rows, self._drawn, strict=True):
            groups = self._rewards[torch.as_tensor(step, device=self._rewards.device)].reshape(-1, n)
            right, tried = (groups > middle).sum(dim=1).tolist(), (~groups.isnan()).sum(dim=1).tolist()
            for row, k, scored in zip(problems, right, tried, strict=True):
                self.stream.record(row, k, scored)

    def _shaped(self, output: dict[str, Any], rows) -> torch.Tensor:
        """This process's advantages, normalised and weighted over each optimizer step's batch."""
        n, rank = self.num_generations, self.accelerator.process_index
        mask = output["completion_mask"]
        if "tool_mask" in output:
            mask = mask * output["tool_mask"]
        lengths = self.accelerator.gather(mask.sum(dim=1))
        advantages = self.accelerator.gather(output["advantages"]).clone()
        # TRL divides a step's loss by the round's tokens over its steps.
        tokens = output["num_items_in_batch"] / self.rounds
        for step in rows:
            step = torch.as_tensor(step, device=advantages.device)
            kept = has_spread(self._rewards[step], n) if self.recipe.drop_zero_variance else None
            if self.recipe.advantages == "batch":
                advantages[step] = batch_advantages(self._rewards[step], n, kept)
            if self.recipe.average == "prompt":
                advantages[step] *= prompt_weights(lengths[step], n, kept, tokens=tokens)
        local = len(output["advantages"])
        return advantages[rank * local : (rank + 1) * local]

    # -- forced end of thinking --------------------------------------------------------------------------------

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        generate = super()._generate_single_turn
        if self.thinking is None:
            return generate(prompt_ids, images, multimodal_fields, num_generations, has_tool_images)
        thinking = self.thinking
        with self._new_tokens(thinking.limit):
            completions, logprobs = generate(prompt_ids, images, multimodal_fields, num_generations, has_tool_images)
        completions = [list(completion) for completion in completions]
        self._forced = [len(thinking.forced) if thinking.interrupted(ids) else 0 for ids in completions]
        for row, count in enumerate(self._forced):
            if count:
                completions[row] += thinking.forced
                if logprobs is not None:
                    # Not sampled: without a probability of their own they get no importance weight.
                    logprobs[row] = [*logprobs[row], *[None] * count]
        going = [row for row, ids in enumerate(completions) if self._forced[row] or thinking.continued(ids)]
        # Processes that generate together must ask for equally many.
        most = max(gather_object([len(going)])) if self.accelerator.num_processes > 1 else len(going)
        if not most:
            return completions, logprobs
        asked = (going + [0] * most)[:most]
        with self._new_tokens(thinking.rest):
            more, more_logprobs = generate([[*prompt_ids[r], *completions[r]] for r in asked], None, {}, 1, False)
        for place, row in enumerate(going):
            completions[row] += list(more[place])
            if logprobs is not None:
                logprobs[row] = [*logprobs[row], *more_logprobs[place]]
        return completions, logprobs

    def _generate(self, prompts):
        generated = super()._generate(prompts)
        if not any(self._forced):
            return generated
        masks = []
        for ids, count in zip(generated[1], self._forced, strict=True):
            mask = [1] * len(ids)
            mask[self.thinking.limit : self.thinking.limit + count] = [0] * count
            masks.append(mask)
        return (*generated[:2], masks, *generated[3:])

    @contextlib.contextmanager
    def _new_tokens(self, count: int):
        """Let generation make at most this many new tokens."""
        if self.use_vllm:
            before = self.vllm_generation.max_completion_length
            self.vllm_generation.max_completion_length = count
        else:
            before = self.generation_config.max_new_tokens
            self.generation_config.max_new_tokens = self.generation_kwargs["max_new_tokens"] = count
        try:
            yield
        finally:
            if self.use_vllm:
                self.vllm_generation.max_completion_length = before
            else:
                self.generation_config.max_new_tokens = self.generation_kwargs["max_new_tokens"] = before

    # -- checkpoints -------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model, trial):
        super()._save_checkpoint(model, trial)
        if self.args.should_save:
            # Written last: a checkpoint that holds it is whole.
            folder = os.path.join(self.args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
            temporary = os.path.join(folder, STATE + ".tmp")
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({"step": self.state.global_step, "stream": self.stream.state()}, file)
            os.replace(temporary, os.path.join(folder, STATE))


def in_order(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Batches of a shuffled round, sorted by their entry `order`, in as many equal parts."""
    whole = {
        name: value if value is None or value.ndim == 0 else torch.cat([batch[name] for batch in batches])
        for name, value in batches[0].items()
    }
    order = torch.argsort(whole.pop("order"))
    whole = {name: value if value is None or value.ndim == 0 else value[order] for name, value in whole.items()}
    return split_tensor_dict(whole, len(batches))


def loop_rows(problems: int) -> Any:
    """One round of empty prompts, which drives TRL's loop while the stream gives the problems."""
    from datasets import Dataset

    return Dataset.from_dict({"prompt": [""] * problems})
