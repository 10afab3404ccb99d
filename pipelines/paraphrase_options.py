"""What `derivedata paraphrase` takes, and the configuration that comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from derivedata.errors import UserError, refuse_below_one
from derivedata.generation.connect import Connection
from derivedata.generation.model import resolve_tokenizer
from derivedata.generation.request import Sampling
from derivedata.generation.style import Style, load_styles, shipped_styles
from derivedata.pipelines.job import Model, ModelOptions
from derivedata.pipelines.paraphrase import ParaphraseConfig, used_styles

CONTEXT = 4096  # tokens of prompt and answer where the model has room for more: longer documents come in pieces


@dataclass(frozen=True, kw_only=True, slots=True)
class ParaphraseOptions(ModelOptions):
    """What `derivedata paraphrase` takes; see its --help."""

    corpus: Sequence[str]
    output: str
    styles: Sequence[str] = ()
    style_mix: Mapping[str, float] | None = None
    rewrites: int = 1
    tokens: int | None = None
    documents: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    filter: str | None = None
    format: str = "jsonl.zst"
    chunk_bytes: int = 128_000_000
    max_bad_input: float = 0.05

    def __post_init__(self) -> None:
        ModelOptions.__post_init__(self)
        refuse_below_one(self, "rewrites", "tokens", "documents", "chunk_bytes", "max_tokens")

    def chosen_styles(self) -> tuple[Style, ...]:
        """The styles asked for, loaded and checked."""
        names = list(self.styles) or list(self.style_mix or shipped_styles())
        styles = load_styles(names)
        if self.style_mix and set(self.style_mix) != set(styles):
            odd = sorted(set(self.style_mix) ^ set(styles))
            raise UserError("--style and --style-mix name different styles", value=", ".join(odd))
        return tuple(styles.values())

    def samplings(self) -> list[Sampling]:
        """The sampling of every style that may be used."""
        config = ParaphraseConfig(
            styles=self.chosen_styles(),
            mix=self.style_mix,
            temperature=self.temperature,
            top_p=self.top_p,
            max_tokens=self.max_tokens,
        )
        return [config.sampling(style) for style in used_styles(config).values()]


def shares(weights: Mapping[str, float]) -> dict[str, float]:
    """Weights as shares of 1 in the order of the names, so that 1:1 and 2:2, in either order, are the same mix."""
    total = sum(weights.values())
    return {name: weights[name] / total for name in sorted(weights)}


def resolve_config(
    options: ParaphraseOptions,
    model: Model,
    styles: tuple[Style, ...],
    *,
    added: str = "",
    connection: Connection | None = None,
) -> ParaphraseConfig:
    """The configuration that options come to with a model, behind servers of somebody else's or not."""
    counter = resolve_tokenizer(options.tokenizer) if options.tokenizer else model
    return ParaphraseConfig(
        styles=styles,
        mix=shares(options.style_mix) if options.style_mix else None,
        rewrites=options.rewrites,
        tokens=options.tokens,
        documents=options.documents,
        model=str(model.path),
        model_name=model.name,
        model_revision=model.revision,
        tokenizer=str(counter.path),
        tokenizer_name=counter.name,
        form=connection.form if connection else "tokens",
        not_sent=connection.not_sent if connection else (),
        context=options.context_for(model, CONTEXT),
        temperature=options.temperature,
        top_p=options.top_p,
        max_tokens=options.max_tokens,
        seed=options.seed,
        filter=options.filter,
        format=options.format,
        added=added,
    )
