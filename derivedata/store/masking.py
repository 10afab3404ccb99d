"""Keeps secrets out of records: fields and options named like keys, tokens or passwords, and logins in URLs."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MASK = "***"
_SECRET = re.compile(r"key|token|secret|passw|credential|authoriz|cookie|signature", re.I)
# Names that hold "token" but speak of the tokens of a text, or "key" but of something public.
_HARMLESS = re.compile(
    r"tokeni[sz]e|tokens|(per|new|max|min|eos|bos|pad|unk|stop|special|num)[-_]?token|monkey|keyword", re.I
)
_COUNT = re.compile(r"[+-]?[\d.,_]+([eE][+-]?\d+)?\s*[kKmMbBtTgG]?")
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_QUERY = re.compile(r"([?&;][^=&;\s]*(?:key|token|secret|passw|credential|signature)[^=&;\s]*=)[^&;\s#]+", re.I)
# What the providers' own keys look like, wherever they stand.
_KNOWN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|(?:AKIA|ASIA)[A-Z0-9]{12,}|gh[pousr]_[A-Za-z0-9]{20,})"
)


def is_secret_name(name: str) -> bool:
    """Whether a field or option of this name holds a secret (api_key, --hf-token; not max_tokens or tokenizer)."""
    return bool(_SECRET.search(name)) and not (_HARMLESS.search(name) and not re.search(r"secret|passw", name, re.I))


def mask(value: Any, name: str = "") -> Any:
    """A copy of JSON-like `value` without secrets; numbers and counts such as "500M" stay."""
    if isinstance(value, Mapping):
        return {str(key): mask(item, str(key)) for key, item in value.items()}
    if isinstance(value, str):
        return _mask_string(value, name)
    if _is_secret_pair(value):
        return [value[0], MASK]
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [mask(item, name) for item in value]
    return value


def _mask_string(value: str, name: str) -> str:
    if value and is_secret_name(name) and not _COUNT.fullmatch(value):
        return MASK
    option, equals, rest = value.partition("=")
    if equals and rest and _is_option(option) and not _COUNT.fullmatch(rest):
        return f"{option}={MASK}"
    return mask_text(value)


def _is_option(name: str) -> bool:
    """Whether a word in front of "=" names a secret; a sentence or a URL does not."""
    return bool(re.fullmatch(r"[\w.-]+", name)) and is_secret_name(name)


def _is_secret_pair(value: Any) -> bool:
    """("api-key", "...") as options with names and values are kept."""
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(isinstance(item, str) for item in value):
        return False
    return _is_option(value[0]) and not _COUNT.fullmatch(value[1])


def mask_text(text: str) -> str:
    """A text without logins in URLs, secret query parameters, and keys of known shapes."""
    return _KNOWN.sub(MASK, _QUERY.sub(rf"\1{MASK}", _LOGIN.sub(MASK, text)))


def mask_command(arguments: Sequence[str]) -> list[str]:
    """A command line without secrets: `--api-key X`, `--api-key=X`, `--vllm-arg api-key=X`, URLs with logins."""
    shown = []
    hide_next = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if hide_next and not argument.startswith("--"):
            shown.append(argument if _COUNT.fullmatch(argument) else MASK)
            hide_next = False
        elif equals and "://" not in name and " " not in name and is_secret_name(name) and not _COUNT.fullmatch(value):
            shown.append(f"{name}={MASK}")
            hide_next = False
        else:
            shown.append(mask_text(argument))
            hide_next = argument.startswith("--") and not equals and is_secret_name(argument)
    return shown
