"""Forms of the law beside the published one, on hold-outs, as a Markdown table: `python -m tests.bench.eta_forms`.

Same folds, starts, loss (Huber 0.1 of ln L) and runs for every form; overfitted runs are kept. It takes some minutes.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from derivedata.cli.eta.inputs import read_runs
from derivedata.scaling.compare import Score, compare_forms
from derivedata.scaling.fit import fit
from derivedata.scaling.form import FORMS
from derivedata.scaling.runs import Runs
from tests.bench.reference import reference_folder

HELD_OUT = ("N", "TPP", "x")


def main() -> None:
    """Print one table a set of runs."""
    folder = reference_folder() / "scaling"
    without_excess = [name for name in FORMS if name != "muennighoff"]
    qin, c4 = folder / "cd_qin2026_370runs.csv", folder / "datablations_runs.csv"
    for title, path, where, forms in (
        ("370 runs of Qin et al. 2026, none dropped", qin, None, without_excess),
        ("355 runs that Qin et al. kept", qin, "kept_in_canonical_fit==1", without_excess),
        ("182 C4 runs of Muennighoff et al. 2023", c4, "c4_fit_subset_182==1", list(FORMS)),
    ):
        print(f"\n**{title}**\n")
        print_table(read_runs(path, where=where)[0], forms)


def print_table(runs: Runs, forms: list[str]) -> None:
    """In-sample objective and RMSE, and hold-out RMSE with the interval of its difference to the published form."""
    scores = {(score.held_out, score.form): score for score in compare_forms(runs, forms)}
    folds = {by: next((s for (held, _), s in scores.items() if held == by), None) for by in HELD_OUT}
    heads = [f"larger {by} ({s.folds} folds, {s.tested} runs)" for by, s in folds.items() if s]
    print("| form | constants | objective | RMSE | " + " | ".join(heads) + " |")
    print("| --- | --- | --- | --- |" + " --- |" * len(heads))
    for form in forms:
        fitted = fit(runs, form=form, delta=0.1, overfit="keep", bootstrap=0, sensitivity=(), profiles=False)
        cells = [cell(scores[by, form]) for by in HELD_OUT if (by, form) in scores]
        row = [form, str(int(fitted.free.sum())), f"{fitted.objective:.4f}", f"{fitted.rmse['all'][1]:.4f}", *cells]
        print("| " + " | ".join(row) + " |", flush=True)


def cell(score: Score) -> str:
    """RMSE, difference to the published form and its interval; in bold where the interval lies below 0."""
    if score.form == "published":
        return f"{score.rmse:.4f}"
    if score.rmse == float("inf"):
        return "diverges"
    text = f"{score.rmse:.4f}, {score.difference:+.4f} [{score.low:+.4f}, {score.high:+.4f}]"
    return f"**{text}**" if score.verdict == "better" else text


if __name__ == "__main__":
    main()
