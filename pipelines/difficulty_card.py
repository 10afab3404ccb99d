"""The dataset card of a measured problem set: what it is, and a configuration a split for `datasets.load_dataset`."""

from __future__ import annotations

from collections.abc import Mapping

from derivedata.pipelines.measured import Measured


def difficulty_card(name: str, measured: Measured, splits: Mapping[str, int]) -> str:
    """The text of README.md.

    Args:
        name: what the data set is called.
        measured: what came out.
        splits: problems of each split.
    """
    import yaml

    identity = measured.identity
    filled = [split for split, count in splits.items() if count]
    configs = [
        {"config_name": "problems", "data_files": [{"split": "train", "path": "problems/problems.parquet"}]},
        *(
            {"config_name": split, "data_files": [{"split": "train", "path": f"splits/{split}.parquet"}]}
            for split in filled
        ),
    ]
    head = yaml.safe_dump({"pretty_name": name, "tags": ["derivedata", "reinforcement-learning"], "configs": configs})
    spans = {band.name: f"[{band.low:g}, {band.high:g}]" for band in measured.bands_rule.bands}
    table = "\n".join(f"| {split} | {spans.get(split, '')} | {count:,} |" for split, count in splits.items())
    mean = measured.mean
    rate = "unknown" if mean is None else f"{mean[0]:.3f} (95% interval {mean[1]:.3f} to {mean[2]:.3f})"
    first = filled[0] if filled else "problems"
    return f"""---
{head.strip()}
---

# {name}

Problems with their pass rate for `{identity["model"]}`, measured with
[derivedata](https://pypi.org/project/derivedata/): avg@{identity["samples"]} at temperature
{identity["temperature"]:g}, top-p {identity["top_p"]:g}, at most {identity["max_new"]:,} new tokens, early
stopping `{identity["early_stop"]}`.
Answers found and checked by `{identity["extractor"]}`; another extractor gives other rates.

Mean pass rate {rate}.

| split | avg@{identity["samples"]} | problems |
| --- | --- | --- |
{table}

Rows have verl's columns (`data_source, prompt, ability, reward_model.ground_truth, extra_info`) with the measurement
beside them: `avg_at_k`, `correct` of `n` counted samples (`k` wanted), a 95% Jeffreys interval, `band`, the share of
truncated samples, mean tokens. `unscored` says why a problem has no rate. `rollouts/` holds every sample.

These samples chose the splits, so they flatter easy problems and slight hard ones: don't use them as the baseline of a
training run. `derivedata difficulty ... --rescore` draws fresh ones.

```python
from datasets import load_dataset

problems = load_dataset("PATH", "{first}", split="train")
```
"""
