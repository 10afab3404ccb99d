"""derivedata: derive training data, account for every token, and say what the derived tokens are worth.

import derivedata
derivedata.paraphrase("corpus", "derived", styles=("faq",), documents=100)
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

# Name -> "module:attribute". A module is imported when its name is asked for, so that `import derivedata` stays cheap.
LAZY: dict[str, str] = {
    "Paraphrase": "derivedata.pipelines.paraphrase_step:Paraphrase",
    "load_corpus": "derivedata.corpus.datasets:load_corpus",
    "load_mixture": "derivedata.corpus.datasets:load_mixture",
    "load_tokens": "derivedata.pipelines.load:load_tokens",
    "paraphrase": "derivedata.pipelines.run:paraphrase",
}


def __getattr__(name: str) -> Any:
    if name not in LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = LAZY[name].split(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *LAZY])
