"""The whole loop on the built-in corpus: derive, train six small models, fit what tokens were worth, value a corpus."""

from click.testing import CliRunner

from derivedata.cli import cli
from derivedata.corpus.sample import write_sample_corpus
from derivedata.pipelines.run import paraphrase_corpus
from tests.fake_server import FakeServer
from tests.pipelines.fakes import MODEL, job, serve_at
from tests.tiny_model import write_tiny_model

DESIGN = """n_params,fresh_tokens,x,strategy,seed
44000,12800,0,,0
44000,12800,1,repeat,0
44000,12800,2,repeat,0
44000,12800,3,repeat,0
44000,12800,.5,paraphrase,0
44000,12800,1,paraphrase,0
"""


def run(*words) -> str:
    found = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.output


def test_derive_train_fit_and_value(tmp_path):
    sample, derived, runs = tmp_path / "sample", tmp_path / "derived", tmp_path / "runs"
    write_sample_corpus(str(sample))
    tiny = write_tiny_model(tmp_path / "tiny")
    with FakeServer(tokenizer=tiny, model=MODEL) as server:
        options = job(sample, derived, tiny, styles=("faq", "table"), rewrites=2)
        paraphrase_corpus(options, serve=serve_at(server.endpoint.url))
    design = tmp_path / "design.csv"
    design.write_text(DESIGN)

    told = run("sweep", design, "--fresh", sample, "--derived", f"paraphrase={derived}", "--holdout", "10%",
               "--eval-tokens", "4k", "--batch-tokens", "1280", "--device", "cpu", "-o", runs)  # fmt: skip
    assert "6 runs in" in told

    fitted = run(
        "eta", "fit", runs / "runs.parquet", "--vocab", "257", "--bootstrap", "20", "-o", tmp_path / "fit.json"
    )
    # One size and one D: it falls back to a constant R* a strategy, and says why.
    assert "held, since these runs cannot identify it" in fitted
    assert "one size only" in fitted and "one constant R*" in fitted

    worth = run("eta", "tokens", derived, "--params", "44352", "--law", tmp_path / "fit.json")
    assert "D_eff = " in worth
