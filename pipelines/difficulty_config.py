"""What a measurement of difficulty is told: samples, bands, sampling, verifier, prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from derivedata.errors import UserError
from derivedata.generation.asking import CHAT, with_system
from derivedata.generation.request import PromptForm, Sampling
from derivedata.pipelines.problem_set import ProblemSet, open_problems, order_problems
from derivedata.problems.bands import parse_bands
from derivedata.problems.early_stopping import parse_confidence, pilot_size
from derivedata.problems.problem import Problem, with_suffix

if TYPE_CHECKING:
    from derivedata.problems.layouts import LayoutChoice


@dataclass(frozen=True, kw_only=True, slots=True)
class DifficultyConfig:
    """What determines the rollouts of a problem and their verdicts."""

    samples: int = 16
    temperature: float = 0.6
    top_p: float = 1.0
    max_tokens: int = 2048
    context: int = 4096  # tokens of prompt and answer
    seed: int = 0
    bands: str = "isocompute"
    early_stop: str = "none"
    answers: str = "lenient"
    verifier: str | None = None  # module:function in the place of our own
    extractor: str = ""  # name and version of what finds and checks answers
    template: str = CHAT  # chat, plain, or a text with {question}
    prompt_suffix: str | None = None
    system: str | None = None
    model: str = ""  # folder of the model
    model_name: str = ""  # what people call it
    model_revision: str | None = ""  # None: a server that doesn't say
    form: PromptForm = "tokens"  # how prompts are sent
    chunk_problems: int = 128

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise UserError("at least one sample is wanted", where="--samples", value=self.samples)
        if self.max_tokens >= self.context:
            raise UserError(
                f"{self.max_tokens} new tokens leave no room for a prompt in a context of {self.context}",
                where="--max-tokens",
                remedy="lower --max-tokens, or raise --context where the model has more",
            )
        parse_bands(self.bands).check_samples(self.samples)
        parse_confidence(self.early_stop)

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_tokens)

    @property
    def confidence(self) -> float | None:
        return parse_confidence(self.early_stop)

    @property
    def needs_prior(self) -> bool:
        """Whether problems stop by probability, so that a pilot is measured in full first."""
        return self.confidence is not None and self.confidence < 1

    def asked(self, problem: Problem) -> Problem:
        """The problem with the prompt that the model gets."""
        prompt = with_suffix(problem, self.prompt_suffix) if self.prompt_suffix else problem.prompt
        return replace(problem, prompt=tuple(with_system(prompt, self.system)))


def read_set(config: DifficultyConfig, sources: Sequence[str], choice: LayoutChoice | None) -> ProblemSet:
    """The problems in the order and the chunks that the configuration gives them."""
    settings = {"seed": config.seed, "chunk_problems": config.chunk_problems}
    whole = open_problems(sources, choice, **settings)
    if not config.needs_prior:
        return whole
    return order_problems(whole.problems, pilot=pilot_size(len(whole.problems)), **settings)
