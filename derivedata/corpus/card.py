"""The dataset card of an output: what it is, and how `datasets.load_dataset` reads each style of it.

The card's YAML names the files of each configuration and the type of every field, so that loading needs no guess from
the data and gives the same features streaming and not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DERIVATION_FIELDS: dict[str, Any] = {
    "source_id": "string",
    "source_uid": "string",
    "strategy": "string",
    "style": "string",
    "style_sha256": "string",
    "rewrite": "int64",
    "piece": "int64",
    "epoch": "int64",
    "model": "string",
    "model_revision": "string",
    "prompt_sha256": "string",
    "params": {
        "max_tokens": "int64",
        "temperature": "float64",
        "top_p": "float64",
        "top_k": "int64",
        "frequency_penalty": "float64",
    },
    "seed": "int64",
    "finish_reason": "string",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "run_id": "string",
}
DOCUMENT_FIELDS: dict[str, Any] = {
    "id": "string",
    "text": "string",
    "source": "string",
    "added": "string",
    "created": "string",
    "metadata": {"derivedata": DERIVATION_FIELDS, "source_metadata": "string"},
}


def features(fields: Mapping[str, Any] = DOCUMENT_FIELDS) -> list[dict[str, Any]]:
    """Fields as the YAML of a dataset card spells them."""
    spelled = []
    for name, kind in fields.items():
        if isinstance(kind, Mapping):
            spelled.append({"name": name, "struct": features(kind)})
        elif isinstance(kind, list):
            spelled.append({"name": name, "list": features(kind[0])})
        else:
            spelled.append({"name": name, "dtype": kind})
    return spelled


def dataset_card(
    *,
    name: str,
    styles: Sequence[Mapping[str, Any]],
    format: str,
    model: str,
    tokenizer: str,
    languages: Sequence[str] = (),
) -> str:
    """The text of README.md for an output.

    Args:
        name: what the data set is called.
        styles: a row a style with `style`, `documents`, `tokens`.
        format: of the shards, e.g. `jsonl.zst`.
        model, tokenizer: names for people.
        languages: codes, where known.
    """
    import yaml

    names = [row["style"] for row in styles]
    configs = [
        {"config_name": "default", "data_files": [{"split": "train", "path": f"documents/*/*.{format}"}]},
        *(
            {"config_name": style, "data_files": [{"split": "train", "path": f"documents/style={style}/*.{format}"}]}
            for style in names
        ),
    ]
    head: dict[str, Any] = {"pretty_name": name, "tags": ["synthetic", "derivedata"]}
    if languages:
        head["language"] = list(languages)
    head["configs"] = configs
    if format != "parquet":
        head["dataset_info"] = [{"config_name": one, "features": features()} for one in ("default", *names)]
    table = "\n".join(f"| {row['style']} | {row['documents']:,} | {row['tokens']:,} |" for row in styles)
    first = names[0] if names else "default"
    return f"""---
{yaml.safe_dump(head, sort_keys=False, allow_unicode=True).strip()}
---

# {name}

Documents derived with [derivedata](https://pypi.org/project/derivedata/): rewritten by `{model}`.

| style | documents | tokens ({tokenizer}) |
| --- | --- | --- |
{table}

`text` is the generation. `metadata.derivedata` says what each document was made from and how; `manifest/` has the same
as Parquet, and `rejected/` keeps what was turned down, with the reason.

```python
from datasets import load_dataset

documents = load_dataset("PATH", "{first}", split="train", streaming=True)
```
"""


def corpus_card(*, name: str, documents: int, tokens: int | None, tokenizer: str | None, format: str) -> str:
    """The text of README.md for a corpus of documents as they were taken in.

    Args:
        name: what the data set is called.
        documents, tokens: counted; tokens None where nobody counted them.
        tokenizer: with what, for people.
        format: of the shards.
    """
    import yaml

    files = [{"split": "train", "path": f"documents/*.{format}"}]
    head = {"pretty_name": name, "tags": ["derivedata"], "configs": [{"config_name": "default", "data_files": files}]}
    counted = "" if tokens is None else f", {tokens:,} tokens ({tokenizer})"
    return f"""---
{yaml.safe_dump(head, sort_keys=False, allow_unicode=True).strip()}
---

# {name}

{documents:,} documents{counted} in the Dolma layout, taken in with
[derivedata](https://pypi.org/project/derivedata/). `manifest/` says for each where it came from (file and row);
`rejected/` keeps the rows that were no documents, with the reason.
"""
