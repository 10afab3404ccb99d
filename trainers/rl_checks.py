"""What is looked at before an RL run starts: the model folder, the reporter, and room for answers."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from derivedata.errors import UserError

_REPORTERS = {"wandb": ("wandb",), "tensorboard": ("tensorboard", "tensorboardX")}


def check_model_folder(model: str) -> None:
    """Refuse a folder without weights; a name is left to the hub.

    Raises:
        UserError: the folder holds no weights.
    """
    folder = Path(model)
    if folder.is_dir() and not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise UserError("the model folder holds no weights", where="--model", value=model)


def check_reporter(report_to: str) -> None:
    """Refuse a reporter whose package is missing.

    Raises:
        UserError: it can't be imported.
    """
    packages = _REPORTERS.get(report_to, ())
    if packages and not any(importlib.util.find_spec(package) for package in packages):
        raise UserError(
            f"--report-to {report_to} needs {packages[0]}", remedy=f"install it with pip install {packages[0]}"
        )


def longest_prompt(tokenizer, rows: Sequence[dict[str, Any]]) -> tuple[int, int]:
    """Tokens of the longest prompt, and its row."""
    if isinstance(rows[0]["prompt"], str):
        ids = tokenizer([row["prompt"] for row in rows])["input_ids"]
    else:
        ids = tokenizer.apply_chat_template(
            [row["prompt"] for row in rows], add_generation_prompt=True, tokenize=True, return_dict=True
        )["input_ids"]
    return max((len(tokens), row) for row, tokens in enumerate(ids))


def check_context(tokenizer, rows: Sequence[dict[str, Any]], *, max_tokens: int, context: int | None) -> int:
    """Tokens that the longest prompt and its answer may take.

    Raises:
        UserError: that is more than the model's context.
    """
    length, row = longest_prompt(tokenizer, rows)
    if context is not None and length + max_tokens > context:
        raise UserError(
            f"a prompt of {length:,} tokens and --max-tokens {max_tokens:,} don't fit the model's context",
            where=f"problem {rows[row]['uid']}",
            value=f"{context:,} tokens",
            remedy="lower --max-tokens, or leave long problems out",
        )
    return length + max_tokens
