"""The built-in problems: sixty questions from sums to short word problems, written for this package.

They are meant for a very small model: SmolLM2-135M-Instruct (48 new tokens, T=0.6, 16 samples, lenient answers) finds
some hard, some easy, some in the gap and some above. Each row says in `extra_info.computed_as` what its answer is the
value of.
"""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def sample_problems() -> Path:
    """The file of the problems (verl's rows, jsonl)."""
    return Path(str(resources.files("derivedata.problems").joinpath("sample", "problems.jsonl")))
