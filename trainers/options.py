"""What a training run is asked for, checked, with the defaults that follow from the size of the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from derivedata.errors import UserError
from derivedata.trainers.ladder import Size
from derivedata.trainers.learner import Recipe
from derivedata.trainers.schedule import KINDS, default_batch_tokens, default_rate

REPORTS = ("none", "wandb", "tensorboard")
EVAL_TOKENS = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """A run of the language-model trainer.

    data, eval_data: places of `open_stream`, or data: token shards. output: folder or URL. size: of the ladder.
    tokenizer: bytes, a folder or a hub id; None: that of token shards, else bytes. tokens: to train on; None: all there
    are, once. holdout: share of the documents held out, unless eval_data is given. eval_tokens: held-out tokens that
    are scored, the same each time. eval_every: tokens between evaluations; None: a tenth of the run. batch_tokens,
    sequence_length, learning_rate: None: what suits the size. warmup: tokens; None: a twentieth of the run, at most
    2,000 steps. checkpoint_minutes: between checkpoints. keep: checkpoints that stay. log_every: steps between log
    lines. vocabulary: rows of the LM head; None: the tokenizer's, padded.
    """

    data: tuple[str, ...]
    output: str
    size: Size
    tokenizer: str | None = None
    eval_data: tuple[str, ...] = ()
    holdout: float | None = None
    tokens: int | None = None
    batch_tokens: int | None = None
    sequence_length: int | None = None
    learning_rate: float | None = None
    schedule: str = "wsd"
    warmup: int | None = None
    decay: float = 0.2
    eval_tokens: int = EVAL_TOKENS
    eval_every: int | None = None
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0
    device: str | None = None
    compile: bool = False
    vocabulary: int | None = None
    checkpoint_minutes: float = 10.0
    keep: int = 2
    log_every: int = 10
    report_to: str = "none"
    restart: bool = False

    def __post_init__(self) -> None:
        if not self.data:
            raise UserError("nothing to train on", where="--data")
        if self.eval_data and self.holdout:
            raise UserError("--eval and --holdout exclude each other", remedy="give one of them")
        if not self.eval_data and not self.holdout:
            raise UserError(
                "no held-out split: a training loss does not say what a token is worth",
                remedy="add --holdout 2%, or --eval with held-out text",
            )
        if self.holdout is not None and not 0 < self.holdout < 1:
            raise UserError("the held-out share lies between 0 and 1", where="--holdout", value=self.holdout)
        if self.schedule not in KINDS:
            raise UserError("no such schedule", where="--schedule", value=self.schedule, remedy=f"there are {KINDS}")
        if self.report_to not in REPORTS:
            raise UserError(
                "cannot report to it", where="--report-to", value=self.report_to, remedy=f"there are {REPORTS}"
            )

    @property
    def length(self) -> int:
        """Tokens of a block."""
        return self.sequence_length or self.size.sequence_length

    def batch_blocks(self, n_params: float) -> int:
        """Blocks of a step."""
        wanted = self.batch_tokens or default_batch_tokens(n_params)
        if self.batch_tokens is not None and self.batch_tokens < self.length:
            raise UserError(
                "a step holds at least one block",
                where="--batch-tokens",
                value=self.batch_tokens,
                remedy=f"give {self.length} or more, or a smaller --sequence-length",
            )
        return max(1, round(wanted / self.length))

    def rate(self, n_params: float) -> float:
        """The peak learning rate."""
        return self.learning_rate or default_rate(n_params)


def warmup_steps(asked: int | None, steps: int, batch_tokens: int) -> int:
    """Steps of warm-up: as asked in tokens, else a twentieth of the run and at most 2,000."""
    return min(2000, max(1, steps // 20)) if asked is None else -(-asked // batch_tokens)
