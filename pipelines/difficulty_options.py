"""What `derivedata difficulty` takes, the configuration that comes of it, and what a run would do (--dry-run)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from derivedata.errors import UserError
from derivedata.generation.asking import read_template
from derivedata.generation.launch import ServerSettings
from derivedata.generation.model import ModelFolder, resolve_model
from derivedata.generation.tokenizer import load_tokenizer
from derivedata.pipelines.difficulty import DifficultyStage
from derivedata.pipelines.difficulty_config import DifficultyConfig, read_set
from derivedata.pipelines.plugin import load_function
from derivedata.problems.layouts import LayoutChoice
from derivedata.problems.verifier import Verifier

PROMPT_ROOM = 2048  # tokens for the prompt where the model has more


@dataclass(frozen=True, kw_only=True, slots=True)
class DifficultyOptions:
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
    model: str | None = None
    context: int | None = None
    tensor_parallel: int = 1
    data_parallel: int | None = None
    max_num_seqs: int | None = None
    vllm_args: Sequence[tuple[str, str]] = ()
    trust_remote_code: bool = False
    temperature: float = 0.6
    top_p: float = 1.0
    max_tokens: int = 2048
    template: str | None = None
    prompt_suffix: str | None = None
    system: str | None = None
    seed: int = 0
    chunk_problems: int = 128
    tasks: int = 1
    workers: int | None = None
    verify_workers: int = 0
    restart: bool = False

    @property
    def choice(self) -> LayoutChoice:
        return LayoutChoice(layout=self.layout, question_field=self.question_field, answer_field=self.answer_field)

    def server_settings(self, context: int) -> ServerSettings:
        """How the server is to be started."""
        return ServerSettings(
            context=context,
            max_num_seqs=self.max_num_seqs,
            tensor_parallel=self.tensor_parallel,
            data_parallel=self.data_parallel,
            trust_remote_code=self.trust_remote_code,
            extra=tuple(self.vllm_args),
        )

    def config(self, model: ModelFolder) -> DifficultyConfig:
        """The configuration that the options come to with a model."""
        if self.context and self.context > model.context:
            raise UserError(f"the model has {model.context} positions", where="--context", value=self.context)
        if self.verifier:
            load_function(self.verifier, "--verifier")
        with Verifier(answers=self.answers, plugin=self.verifier) as verifier:
            extractor = verifier.name
        return DifficultyConfig(
            samples=self.samples,
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
            context=self.context or min(model.context, self.max_tokens + PROMPT_ROOM),
            seed=self.seed,
            bands=self.bands,
            early_stop=self.early_stop,
            answers=self.answers,
            verifier=self.verifier,
            extractor=extractor,
            template=read_template(self.template, load_tokenizer(model.path, model.name)),
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


def forecast_difficulty(options: DifficultyOptions) -> Forecast:
    """What a run with these options would do; starts no server."""
    model = resolve_model(options.model)
    config = options.config(model)
    problems = read_set(config, options.problems, options.choice)
    stage = DifficultyStage(
        config=config, sources=options.problems, output=options.output, endpoint_file="", window=1, run_id=""
    )
    refused: dict[str, int] = {}
    prompts: list[list[int]] = []
    for planned in stage.plan(None, problems.problems, 0):
        if planned.prompt is not None:
            prompts.append(planned.prompt)
        else:
            refused[planned.outcome["reason"]] = refused.get(planned.outcome["reason"], 0) + 1
    return Forecast(
        counts=problems.counts(),
        refused=refused,
        rollouts=len(prompts) * config.samples,
        prompt_tokens=sum(map(len, prompts)),
        new_tokens=len(prompts) * config.samples * config.max_tokens,
        example=stage.tokenizer.decode(prompts[0]) if prompts else "",
    )
