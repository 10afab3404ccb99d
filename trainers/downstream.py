"""What a trained model does with text it has not seen: bits per byte by source, LAMBADA, and SQuAD-style answers.

    derivedata train score RUN --text held-out --lambada lambada_test.jsonl --squad dev-v1.1.json

Task files are the user's own, in the formats they are published in. An item is a context and what should follow it; it
is scored by the cross-entropy of what follows, and by whether the model would have written exactly that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from derivedata.errors import UserError
from derivedata.trainers.vocabulary import BYTES, TextTokenizer, open_tokenizer

if TYPE_CHECKING:
    import torch

Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Item:
    """A context and what should follow it, its leading space included."""

    context: str
    target: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Mean:
    """A mean over items with its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskScore:
    """A task. nats: cross-entropy of a target. bits_per_byte: over all targets. accuracy: targets written exactly."""

    task: str
    items: int
    nats: Mean
    bits_per_byte: float
    accuracy: Mean


def read_lambada(path: str | Path) -> list[Item]:
    """LAMBADA as JSON lines with `text`: the last word is to be told from what comes before.

    Raises:
        UserError: no such file, or a line that is no such item.
    """
    items = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"].rstrip()
            context, word = text.rsplit(None, 1)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(
                'not a line of LAMBADA ({"text": ...} of two words or more)', where=f"{path}:{number}"
            ) from None
        items.append(Item(context, f" {word}"))
    return _some(items, path)


def read_squad(path: str | Path) -> list[Item]:
    """SQuAD 1.1 or 2.0: the passage and the question are the context, the first answer the target; questions without an
    answer are left out.

    Raises:
        UserError: no such file, or not in that format.
    """
    try:
        found = list(_questions(json.loads(_text(path))))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError("not in the format of SQuAD", where=path, value=str(error)) from None
    return _some(found, path)


def _questions(told: dict) -> Iterator[Item]:
    for article in told["data"]:
        for paragraph in article["paragraphs"]:
            for asked in paragraph["qas"]:
                if asked["answers"]:
                    context = f"{paragraph['context']}\n\nQuestion: {asked['question']}\nAnswer:"
                    yield Item(context, f" {asked['answers'][0]['text'].strip()}")


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError("the task cannot be read", where=path, value=getattr(error, "strerror", None)) from None


def _some(items: list[Item], path: str | Path) -> list[Item]:
    if not items:
        raise UserError("the task holds no items", where=path)
    return items


def score_task(
    name: str, items: Sequence[Item], model: torch.nn.Module, tokenizer: TextTokenizer, *, batch: int = 16
) -> TaskScore:
    """Score items with a model of transformers; contexts that are too long lose their beginning.

    Args:
        batch: items at once; short and long ones are not mixed.
    """
    import torch

    longest = model.config.max_position_embeddings
    contexts = tokenizer.encode([item.context for item in items])
    targets = tokenizer.encode([item.target for item in items])
    pairs = [
        (np.concatenate([context, target])[-longest:], min(len(target), longest - 1))
        for context, target in zip(contexts, targets, strict=True)
    ]
    nats, exact = np.zeros(len(items)), np.zeros(len(items), bool)
    order = sorted(range(len(items)), key=lambda i: len(pairs[i][0]))
    model.eval()
    device = next(model.parameters()).device
    with torch.no_grad():
        for at in range(0, len(order), batch):
            mine = order[at : at + batch]
            width = max(len(pairs[i][0]) for i in mine)
            ids = np.zeros((len(mine), width), np.int64)
            for row, i in enumerate(mine):
                # Padded at the end, where a causal model does not look.
                ids[row, : len(pairs[i][0])] = pairs[i][0]
            ids = torch.from_numpy(ids).to(device)
            logits = model(input_ids=ids, use_cache=False).logits[:, :-1].float()
            told = torch.log_softmax(logits, -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
            right = logits.argmax(-1) == ids[:, 1:]
            for row, i in enumerate(mine):
                stop = len(pairs[i][0]) - 1
                part = slice(stop - pairs[i][1], stop)
                nats[i] = -float(told[row, part].sum())
                exact[i] = bool(right[row, part].all())
    size = sum(len(item.target.encode("utf-8", "replace")) for item in items)
    return TaskScore(
        task=name,
        items=len(items),
        nats=_mean(nats),
        bits_per_byte=float(nats.sum() / math.log(2) / size),
        accuracy=_share(int(exact.sum()), len(items)),
    )


def _mean(values: np.ndarray) -> Mean:
    half = Z95 * values.std(ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    value = float(values.mean())
    return Mean(value=value, low=value - half, high=value + half)


def _share(hits: int, count: int) -> Mean:
    """Wilson's interval."""
    share, z = hits / count, Z95
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    return Mean(value=share, low=max(0.0, centre - half), high=min(1.0, centre + half))


def open_model(place: str, tokenizer: str | None, device: str) -> tuple[torch.nn.Module, TextTokenizer]:
    """The model of a run (RUN/model) or any folder of transformers, and its tokenizer; bytes where it has none.

    Raises:
        UserError: there is no model, or its vocabulary is smaller than the tokenizer's.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    folder = Path(place) / "model" if (Path(place) / "model" / "config.json").is_file() else Path(place)
    if not (folder / "config.json").is_file():
        raise UserError("no model here", where=place, remedy="name a finished run, or a folder with config.json")
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError("the model cannot be loaded", where=folder, value=str(error).splitlines()[0]) from None
    has_own = any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json"))
    found = open_tokenizer(tokenizer or (str(folder) if has_own else BYTES))
    if found.vocabulary_size > model.config.vocab_size:
        raise UserError(
            f"the model's vocabulary is smaller than that of {found.name}",
            where="--tokenizer",
            value=f"{found.vocabulary_size} ids, {model.config.vocab_size} in the model",
            remedy="name the tokenizer that it was trained with",
        )
    return model.to(device), found


def score_text(
    places: Sequence[str], model: torch.nn.Module, tokenizer: TextTokenizer, *, tokens: int, length: int
) -> tuple[dict[str, float], dict[str, float], int]:
    """Nats a token and bits a byte of a corpus by `source:NAME` and `style:NAME`, and how many tokens were scored.

    Args:
        tokens: at most; from a shuffled order, always the same, so that all sources are among them.
        length: of a block.
    """
    import tempfile

    from derivedata.trainers.corpus import open_corpus, separate_store
    from derivedata.trainers.heldout import HeldOut
    from derivedata.trainers.learner import Learner, Recipe
    from derivedata.trainers.ranks import Ranks

    device = str(next(model.parameters()).device)
    with tempfile.TemporaryDirectory() as folder:
        store = separate_store(Path(folder) / "tokens", open_corpus(list(places), 0), tokenizer, tokens=tokens)
        held = HeldOut(store, length, tokens)
        scores = held.score(Learner(model, Recipe(), Ranks(rank=0, world=1, device=device)))
        return {"all": scores.loss, **scores.by}, dict(scores.bits_per_byte), held.tokens
