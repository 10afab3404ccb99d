"""What `derivedata difficulty` takes, the configuration that comes of it, and what a run would do (--dry-run)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from derivedata.errors import UserError
from derivedata.generation.asking import CHAT, read_template
from derivedata.generation.connect import Connection
from derivedata.generation.request import Prompt, Sampling
from derivedata.generation.tokenizer import load_tokenizer
from derivedata.pipelines.derivation import Planned
from derivedata.pipelines.difficulty import DifficultyStage
from derivedata.pipelines.difficulty_config import DifficultyConfig, read_set
from derivedata.pipelines.job import Model, ModelOptions, check_context, find_model
from derivedata.pipelines.plugin import load_function
from derivedata.problems.layouts import LayoutChoice
from derivedata.problems.verifier import Verifier

PROMPT_ROOM = 2048  # tokens for the prompt where the model has more


@dataclass(frozen=True, kw_only=True, slots=True)
class DifficultyOptions(ModelOptions):
    """What `derivedata difficulty` takes; see its --help."""

    problems: Sequence[str]
    output: str
    layout: str | None = None
    question_field: str | None = None
    answer_field: str | None = None
    samples: int = 16
    bands: str = "isocompute"
    early_stop: str = "none"
    answers: str = "lenient"
    verifier: str | None = None
    refine_borderline: int = 0
    rescore: bool = False
    validation: int = 0
    temperature: float = 0.6
    top_p: float = 1.0
    max_tokens: int = 2048
    template: str | None = None
    prompt_suffix: str | None = None
    system: str | None = None
    chunk_problems: int = 128
    verify_workers: int = 0

    def __post_init__(self) -> None:
        ModelOptions.__post_init__(self)
        if self.tokenizer and not self.endpoints:
            raise UserError("is for a server that runs already", where="--tokenizer", remedy="add --endpoint")

    @property
    def choice(self) -> LayoutChoice:
        return LayoutChoice(layout=self.layout, question_field=self.question_field, answer_field=self.answer_field)

    @property
    def plain(self) -> bool | None:
        """Whether problems are asked without a chat template; None: as the model has one."""
        return None if self.template is None else self.template != CHAT

    @property
    def sampling(self) -> Sampling:
        return Sampling(temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_tokens)

    def config(self, model: Model, connection: Connection | None = None) -> DifficultyConfig:
        """The configuration that the options come to with a model, behind servers of somebody else's or not."""
        if self.context and model.context and self.context > model.context:
            raise UserError(f"the model has {model.context} positions", where="--context", value=self.context)
        form = connection.form if connection else "tokens"
        if self.verifier:
            load_function(self.verifier, "--verifier")
        with Verifier(answers=self.answers, plugin=self.verifier) as verifier:
            extractor = verifier.name
        return DifficultyConfig(
            samples=self.samples,
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            context=self.context_for(model, self.max_tokens + PROMPT_ROOM),
            form=form,
            seed=self.seed,
            bands=self.bands,
            early_stop=self.early_stop,
            answers=self.answers,
            verifier=self.verifier,
            extractor=extractor,
            template=read_template(self.template, load_tokenizer(model.path, model.name), form),
            prompt_suffix=self.prompt_suffix,
            system=self.system,
            model=str(model.path),
            model_name=model.name,
            model_revision=model.revision,
            chunk_problems=self.chunk_problems,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """What a run would do."""

    counts: dict[str, Any]  # of the reading, see `count_problems`
    refused: dict[str, int]  # problems whose prompt can't be asked, by reason
    rollouts: int  # at most
    prompt_tokens: int  # of one sample of each problem
    new_tokens: int  # at most
    example: str  # the first prompt, as the model gets it


def forecast_difficulty(options: DifficultyOptions, say: Callable[[str], None] | None = None) -> Forecast:
    """What a run with these options would do; starts no server, but asks one that runs already a few words."""
    model, connection = find_model(options, [options.sampling], plain=options.plain, say=say)
    config = options.config(model, connection)
    check_context(config.context, connection)
    problems = read_set(config, options.problems, options.choice)
    stage = DifficultyStage(
        config=config, sources=options.problems, output=options.output, endpoint_file="", window=1, run_id=""
    )
    refused: dict[str, int] = {}
    prompts: list[Planned] = []
    for planned in stage.plan(None, problems.problems, 0):
        if planned.prompt is not None:
            prompts.append(planned)
        else:
            refused[planned.outcome["reason"]] = refused.get(planned.outcome["reason"], 0) + 1
    return Forecast(
        counts=problems.counts(),
        refused=refused,
        rollouts=len(prompts) * config.samples,
        prompt_tokens=sum(planned.prompt_tokens for planned in prompts),
        new_tokens=len(prompts) * config.samples * config.max_tokens,
        example=_shown(prompts[0].prompt, stage) if prompts else "",
    )


def _shown(prompt: Prompt, stage: DifficultyStage) -> str:
    """A prompt as text, whatever its form."""
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt[0], dict):
        return "\n".join(f"[{message['role']}] {message['content']}" for message in prompt)
    return stage.tokenizer.decode(prompt)
