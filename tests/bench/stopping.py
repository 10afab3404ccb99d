"""Early stopping in the real command against a replaying server: rollouts saved and labels changed, by rule.

    python -m tests.bench.stopping --problems 10000

The rates are resampled from those that a 7B model has on the Guru problems, and drawn for a weak model (80% of the
problems Beta(0.1, 20), 20% Beta(0.5, 1)). The server's answers follow from prompt and seed, so the labels of all
sixteen samples are known without drawing them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from derivedata.cli.render import text_table
from tests.bench.reference import reference_folder
from tests.fake_answers import answer, write_problems
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL
from tests.pipelines.measuring import measure
from tests.pipelines.test_difficulty_stopping import compare, full_labels, guru_rates, weak_rates
from tests.tiny_model import write_tiny_model

RULES = ("exact", "0.99", "0.95")


def rows(folder: Path, count: int) -> list[dict]:
    """A row a set and rule."""
    found = []
    model = write_tiny_model(folder / "model")
    for kind, rates in {"Guru": guru_rates(reference_folder(), count), "weak": weak_rates(count)}.items():
        problems = write_problems(folder / f"{kind}.jsonl", rates)
        labels = full_labels(problems, model)
        for rule in RULES:
            with FakeServer(tokenizer=model, model=MODEL, reply=answer, max_num_seqs=64) as server:
                began = time.monotonic()
                measured = measure(
                    server, problems, folder / f"{kind}-{rule}", model, early_stop=rule, chunk_problems=500
                )
                seconds = time.monotonic() - began
            changed, saved = compare(measured, labels)
            found.append(
                {
                    "set": kind,
                    "rule": rule,
                    "rollouts": len(measured.rollouts),
                    "saved": f"{saved:.1%}",
                    "labels changed": f"{changed:.2%}",
                    "expected": f"{measured.stopped().get('may_differ', 0.0):.2%}",
                    "rollouts/s": round(len(measured.rollouts) / seconds),
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problems", type=int, default=10_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = rows(Path(folder), options.problems)
    print(text_table(found, list(found[0])))


if __name__ == "__main__":
    main()
