"""A style: how a model is asked to rewrite a document, which documents it suits, and which outputs are accepted.

A style is a YAML file (`derivedata styles show faq` prints one). Shipped styles go by name, a user's own by path:

    style = load_style("faq")
    style = load_style("my-styles/dialogue.yaml")
    styles = load_styles(["question", "faq", "my-styles/dialogue.yaml"])

The document is put before `instruction` as it is: no template language is involved, nothing in a style is executed.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from derivedata.errors import UserError
from derivedata.generation.measures import count_numbers, count_words
from derivedata.generation.yamlfile import YamlFile, read_yaml

ON_LONG = ("split", "window", "truncate", "skip")
FORMS = ("any", "prose", "qa", "faq", "table", "problem")
SKIP = "skip"


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingDefaults:
    """How tokens are drawn unless the run says otherwise."""

    temperature: float = 0.7  # 0 is greedy
    top_p: float = 0.95  # share of probability kept
    top_k: int = 50  # tokens kept; -1 keeps all
    frequency_penalty: float = 0.0  # taken from a token's logit for each time it was written already; against loops
    max_tokens: int = 512  # new tokens of one generation

    def __post_init__(self):
        _number(self, "temperature", 0.0, 2.0)
        _number(self, "top_p", 0.0, 1.0, above=True)
        _number(self, "frequency_penalty", -2.0, 2.0)
        _integer(self, "top_k", -1, 1_000_000)
        if self.top_k == 0:
            raise UserError("must not be 0", where="top_k", remedy="write -1 to keep all tokens")
        _integer(self, "max_tokens", 1, 131_072)


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceLimits:
    """Which lengths of documents the style takes, in the model's tokens, and what happens to longer ones."""

    min_tokens: int = 1  # shorter documents are skipped
    max_tokens: int | None = None  # of one piece; null: what the model's context leaves
    on_long: str = "split"  # split into pieces | window (one piece drawn by the seed) | truncate | skip

    def __post_init__(self):
        _integer(self, "min_tokens", 0, 1 << 30)
        if self.max_tokens is not None:
            _integer(self, "max_tokens", 1, 1 << 30)
            if self.max_tokens < self.min_tokens:
                raise UserError("is below min_tokens", where="max_tokens", value=self.max_tokens)
        _choice(self, "on_long", ON_LONG)


@dataclass(frozen=True, kw_only=True, slots=True)
class AppliesWhen:
    """What a document must have for the style to suit it, and what happens to the others."""

    min_numbers: int = 0  # numbers in the document
    min_words: int = 0  # words (a Chinese or Japanese character counts as one)
    otherwise: str = SKIP  # skip, or the name of the style that takes the document instead

    def __post_init__(self):
        _integer(self, "min_numbers", 0, 1_000_000)
        _integer(self, "min_words", 0, 1_000_000)
        _text(self, "otherwise", 40)


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceptRules:
    """What a generation must be to become a document."""

    form: str = "any"  # what it claims to be; derivedata.generation.filters knows each form
    min_chars: int = 1
    max_chars: int | None = None
    min_ratio: float = 0.0  # characters of the output over characters of the source
    max_ratio: float | None = None
    max_overlap: float = 1.0  # share of the output's word 8-grams that the source has too; 1: no limit
    min_shared_words: float = 0.0  # share of the output's words of 5 letters or more that the source has too; 0: any
    min_known_numbers: float = 0.0  # share of the output's numbers that the source has too; 0: any
    allow_truncated: bool = False  # cut off at max_tokens: keep up to the last complete sentence (or table row)
    same_language: bool = True  # reject an output in another script, or in another common European language

    def __post_init__(self):
        _choice(self, "form", FORMS)
        _integer(self, "min_chars", 0, 1 << 30)
        if self.max_chars is not None:
            _integer(self, "max_chars", 1, 1 << 30)
            if self.max_chars < self.min_chars:
                raise UserError("is below min_chars", where="max_chars", value=self.max_chars)
        _number(self, "min_ratio", 0.0, 100.0)
        if self.max_ratio is not None:
            _number(self, "max_ratio", 0.0, 10_000.0, above=True)
            if self.max_ratio < self.min_ratio:
                raise UserError("is below min_ratio", where="max_ratio", value=self.max_ratio)
        _number(self, "max_overlap", 0.0, 1.0)
        _number(self, "min_shared_words", 0.0, 1.0)
        _number(self, "min_known_numbers", 0.0, 1.0)
        _boolean(self, "allow_truncated")
        _boolean(self, "same_language")


@dataclass(frozen=True, kw_only=True)
class Style:
    """One style. `sha256` is over all that can alter a derived text; description, version and path can't."""

    name: str
    version: int = 1
    description: str
    system: str | None = None
    instruction: str
    opening: str = ""  # the first characters of the answer, written for the model; they are part of the derived text
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    source: SourceLimits = field(default_factory=SourceLimits)
    applies_when: AppliesWhen = field(default_factory=AppliesWhen)
    accept: AcceptRules = field(default_factory=AcceptRules)
    path: str | None = None  # where it was read; not part of the file

    def __post_init__(self):
        check_name(self.name)
        _integer(self, "version", 0, 1_000_000)
        _text(self, "description", 1_000)
        if self.system is not None:
            _text(self, "system", 20_000)
        _text(self, "instruction", 20_000)
        if self.opening != "":
            _text(self, "opening", 200)
        if self.applies_when.otherwise == self.name:
            raise UserError("names the style itself", where="applies_when.otherwise", value=self.name)

    @property
    def on_long(self) -> str:
        """What happens to a document above `source.max_tokens`."""
        return self.source.on_long

    @property
    def fallback(self) -> str | None:
        """Name of the style that takes documents this one doesn't suit; None: they are skipped."""
        return None if self.applies_when.otherwise == SKIP else self.applies_when.otherwise

    def with_opening(self, completion: str) -> str:
        """The whole answer: `opening` and what the model wrote after it (some models write the opening once more)."""
        return completion if completion.lstrip().startswith(self.opening) else self.opening + completion

    @cached_property
    def sha256(self) -> str:
        """Hash of the canonical content, 64 hex characters."""
        alters = {key: value for key, value in self.to_dict().items() if key not in ("version", "description")}
        return hashlib.sha256(json.dumps(alters, sort_keys=True, ensure_ascii=False).encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """The style as the mapping its file would hold, defaults written out."""
        content = asdict(self)
        del content["path"]
        return content

    def unsuitable(self, text: str, tokens: int | None = None) -> str | None:
        """Why a document is not for this style, as a stable reason; None when it is.

        Args:
            text: the document.
            tokens: its length in the model's tokens, where known.

        Returns:
            `source_too_short`, `source_too_long` (only with on_long: skip), `too_few_words`, `too_few_numbers` or None.
            The first two are skips; for the other two `fallback` may name another style.
        """
        if not text.strip() or (tokens is not None and tokens < self.source.min_tokens):
            return "source_too_short"
        limit = self.source.max_tokens
        if self.on_long == SKIP and tokens is not None and limit is not None and tokens > limit:
            return "source_too_long"
        if self.applies_when.min_words and count_words(text) < self.applies_when.min_words:
            return "too_few_words"
        if self.applies_when.min_numbers and count_numbers(text) < self.applies_when.min_numbers:
            return "too_few_numbers"
        return None


def check_name(name: object) -> None:
    """Refuse what can't be a style's name: it becomes part of folder names (style=faq), of configs and of SQL."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", name) or name in (SKIP, "default"):
        remedy = f"up to 40 lower-case letters, digits, - and _, a letter first; not `{SKIP}` or `default`"
        raise UserError("is not a name for a style", where="name", value=name, remedy=remedy)


def shipped_folder() -> Path:
    """Where the shipped styles are installed."""
    import derivedata.styles

    return Path(derivedata.styles.__path__[0])


def shipped_styles() -> dict[str, Path]:
    """Names of the shipped styles and their files, sorted by name."""
    return {path.stem: path for path in sorted(shipped_folder().glob("*.yaml"))}


def load_style(name_or_path: str | Path) -> Style:
    """Load a shipped style by name, or any style by the path of its file.

    Raises:
        UserError: no such style or file, or the file is not a valid style (file, line, field, value and remedy).
    """
    given = str(name_or_path)
    if given in (shipped := shipped_styles()):
        return style_from(read_yaml(shipped[given]))
    if Path(given).is_file():
        return style_from(read_yaml(given))
    if "/" in given or given.endswith((".yaml", ".yml")):
        raise UserError("there is no such style file", where="style", value=given)
    near = difflib.get_close_matches(given, shipped, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise UserError(
        "there is no such style",
        where="style",
        value=given,
        remedy=f"{hint}Shipped are {', '.join(shipped)}; your own goes by the path of its file",
    )


def load_styles(names_or_paths: Sequence[str | Path]) -> dict[str, Style]:
    """Load several styles, in the order given; fallbacks they name are looked up among them and the shipped ones.

    A name means one style in a run: it is part of every key, folder and column, so two files of one name are refused,
    and so is the same style given twice.

    Raises:
        UserError: as `load_style`; a name twice; a fallback that doesn't exist; fallbacks that lead in a circle.
    """
    styles: dict[str, Style] = {}
    for given in names_or_paths:
        style = load_style(given)
        if style.name in styles:
            first = styles[style.name].path
            remedy = "give it once" if first == style.path else "change the `name` in one of the files"
            raise UserError(
                f"two styles are named {style.name}: {first} and {style.path}", where="style", remedy=remedy
            )
        styles[style.name] = style
    for style in styles.values():
        resolve_fallbacks(style, styles)
    return styles


def resolve_fallbacks(style: Style, styles: dict[str, Style]) -> list[Style]:
    """The styles that would take a document in turn when `style` doesn't suit it, nearest first."""
    chain, seen = [], {style.name}
    at = style
    while at.fallback:
        try:
            after = styles.get(at.fallback) or load_style(at.fallback)
        except UserError as error:
            raise UserError(
                "names a style that isn't there",
                where=f"{at.path}: applies_when.otherwise",
                value=at.fallback,
                remedy=error.remedy or "give that style too, or write skip",
            ) from None
        if after.name in seen:
            circle = " -> ".join([style.name, *(s.name for s in chain), after.name])
            raise UserError(
                "leads in a circle",
                where=f"{at.path}: applies_when.otherwise",
                value=circle,
                remedy="let one of them say skip",
            )
        seen.add(after.name)
        chain.append(after)
        at = after
    return chain


_SECTIONS = {"sampling": SamplingDefaults, "source": SourceLimits, "applies_when": AppliesWhen, "accept": AcceptRules}


def style_from(read: YamlFile) -> Style:
    """Build a style from a file's content; unknown keys and wrong values are refused with file, line and field."""
    given: dict[str, Any] = {}
    known = {f.name for f in fields(Style)} - {"path"}
    for key, value in read.content.items():
        _known(key, known, read, key)
        given[key] = _section(key, value, read) if key in _SECTIONS else value
    required = [f.name for f in fields(Style) if f.default is MISSING and f.default_factory is MISSING]
    for name in required:
        if given.get(name) is None:
            raise UserError(
                f"has no `{name}`", where=read.path, remedy="`derivedata styles new` writes a complete file"
            )
    for name in ("instruction", "system", "description"):
        if isinstance(given.get(name), str):
            given[name] = given[name].strip()
    if isinstance(given.get("opening"), str):
        # A space at the end would be a token that the model is used to see joined to the next word.
        given["opening"] = given["opening"].rstrip(" ")
    try:
        return Style(**given, path=read.path)
    except UserError as error:
        raise _located(error, read, str(error.where)) from None


def _section(name: str, value: Any, read: YamlFile) -> Any:
    section = _SECTIONS[name]
    known = {f.name for f in fields(section)}
    if not isinstance(value, dict):
        remedy = f"write the fields under it: {', '.join(sorted(known))}"
        raise UserError("must be a mapping", where=read.where(name), value=value, remedy=remedy)
    for key in value:
        _known(key, known, read, f"{name}.{key}")
    try:
        return section(**value)
    except UserError as error:
        raise _located(error, read, f"{name}.{error.where}") from None


def _known(key: str, known: set[str], read: YamlFile, name: str) -> None:
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        remedy = f"did you mean {near[0]}?" if near else f"known here: {', '.join(sorted(known))}"
        raise UserError("unknown key", where=read.where(name), value=key, remedy=remedy)


def _located(error: UserError, read: YamlFile, name: str) -> UserError:
    return UserError(error.what, where=read.where(name), value=error.value, remedy=error.remedy)


def _integer(config: Any, name: str, low: int, high: int) -> None:
    value = getattr(config, name)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise UserError(f"must be a whole number from {low} to {high}", where=name, value=value)


def _number(config: Any, name: str, low: float, high: float, *, above: bool = False) -> None:
    value = getattr(config, name)
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or not low <= value <= high or (above and value == low):
        what = f"must be a number {'above' if above else 'from'} {low:g} to {high:g}"
        raise UserError(what, where=name, value=value)
    # 1 and 1.0 are one value, and one hash.
    object.__setattr__(config, name, float(value))


def _boolean(config: Any, name: str) -> None:
    value = getattr(config, name)
    if not isinstance(value, bool):
        raise UserError("must be true or false", where=name, value=value)


def _choice(config: Any, name: str, choices: Sequence[str]) -> None:
    value = getattr(config, name)
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1)
        remedy = (f"did you mean {near[0]}? " if near else "") + f"One of {', '.join(choices)}"
        raise UserError("is not one of the choices", where=name, value=value, remedy=remedy)


def _text(config: Any, name: str, limit: int) -> None:
    value = getattr(config, name)
    if not isinstance(value, str) or not value.strip():
        raise UserError("must be text", where=name, value=value, remedy="quote it if it looks like a number")
    if len(value) > limit:
        raise UserError(f"is longer than {limit} characters", where=name, value=value, remedy="shorten it")
