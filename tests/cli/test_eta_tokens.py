"""`derivedata eta tokens`: what the tokens of a corpus are worth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from derivedata.cli.eta.tokens import corpus_lines, forecast, tokens
from derivedata.corpus.writer import ShardWriter
from derivedata.errors import UserError
from derivedata.scaling.presets import load_preset
from derivedata.store.books import Books
from derivedata.store.ledger import Ledger
from derivedata.store.paths import Folder
from derivedata.store.tables import DOCUMENTS, Part, ShardEntry, rows_to_table

N370 = load_preset("qin2026-n370")


def commit_shard(
    corpus: Path, *, strategy: str | None, style: str, tokens: int | None, documents: int = 2, chars: int = 4
) -> None:
    """A committed shard of `documents` documents, each of a source document of its own."""
    waiting = corpus.parent / f"{strategy}-{style}.jsonl.zst"
    with ShardWriter(waiting) as writer:
        for i in range(documents):
            writer.write({"id": str(i), "text": "text"})
        shard = writer.close()
    each = None if tokens is None else min(tokens // documents, 1000)
    rows = [
        {
            "uid": f"{style}{i}",
            "strategy": strategy,
            "style": style,
            "tokens": each,
            "chars": chars,
            "source_uid": f"s{i}",
        }
        for i in range(documents)
    ]
    entry = ShardEntry(
        path=f"documents/style={style}/0.jsonl.zst",
        local=waiting,
        sha256=shard.sha256,
        bytes=shard.bytes,
        documents=documents,
        tokens=tokens,
        tokenizer=None if tokens is None else "smollm2",
        strategy=strategy,
        style=style,
        format="jsonl.zst",
    )
    part = Part(
        books=Books(planned=documents, accepted=documents),
        shards=[entry],
        tables={"documents": rows_to_table(rows, DOCUMENTS)},
    )
    Ledger(Folder(corpus), "test").publish(f"{strategy}-{style}", part)


def ask(*arguments: object) -> str:
    result = CliRunner().invoke(tokens, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def ask_json(*arguments: object) -> dict:
    return json.loads(ask(*arguments, "--json"))


def test_effective_tokens_follow_the_law_from_the_tokens_of_the_manifest(tmp_path):
    commit_shard(tmp_path / "c", strategy="paraphrase", style="faq", tokens=6_000_000_000)
    commit_shard(tmp_path / "c", strategy="paraphrase", style="math", tokens=2_000_000_000)
    found = ask_json(tmp_path / "c", "--params", "100M", "--fresh-tokens", "2B")
    (paraphrase,) = found["worth"]["strategies"]
    assert paraphrase["x"] == 4.0
    assert paraphrase["eta"]["value"] == pytest.approx(float(N370.eta(1e8, 2e9, 8e9, "paraphrase")))
    assert found["worth"]["effective_tokens"]["value"] == pytest.approx(
        2e9 + 8e9 * float(N370.eta(1e8, 2e9, 8e9, "paraphrase"))
    )
    assert paraphrase["marginal"]["value"] == pytest.approx(float(N370.marginal_value(1e8, 2e9, 8e9, "paraphrase")))
    worth = float(N370.eta(1e8, 2e9, 8e9, "paraphrase"))
    assert paraphrase["effective_tokens"]["value"] == pytest.approx(8e9 * worth)
    assert paraphrase["share"]["value"] == pytest.approx(4 * worth / float(N370.r_star(1e8, 2e9, "paraphrase")))
    assert found["worth"]["is_untested"] is False
    low, high = found["worth"]["effective_tokens"]["low"], found["worth"]["effective_tokens"]["high"]
    assert low < found["worth"]["effective_tokens"]["value"] < high


def test_the_text_lists_styles_states_n_and_marks_several_strategies_untested(tmp_path):
    commit_shard(tmp_path / "c", strategy="paraphrase", style="faq", tokens=4_000_000_000)
    commit_shard(tmp_path / "c", strategy="repeat", style="epoch-2", tokens=2_000_000_000)
    text = ask(tmp_path / "c", "--params", "100M", "--fresh-tokens", "2B")
    assert "faq" in text
    assert "epoch-2" in text
    assert "untested" in text
    assert "N: all parameters but the input embedding, LM head included" in text
    assert "extrapolated" not in text, "100M and 20 tokens per parameter are within the runs behind the law"


def test_what_the_law_was_not_fitted_on_is_starred(tmp_path):
    commit_shard(tmp_path / "c", strategy="paraphrase", style="faq", tokens=4_000_000_000)
    text = ask(tmp_path / "c", "--params", "7B", "--fresh-tokens", "140B")
    assert "* extrapolated: the runs behind the law have N 14M to 600M" in text


def test_fresh_shards_of_the_manifest_are_d(tmp_path):
    commit_shard(tmp_path / "c", strategy="fresh", style="source", tokens=2_000_000_000)
    commit_shard(tmp_path / "c", strategy="paraphrase", style="faq", tokens=4_000_000_000)
    found = ask_json(tmp_path / "c", "--params", "100M")
    assert found["holdings"]["fresh_tokens"] == 2e9
    assert found["worth"]["strategies"][0]["x"] == 2.0


def test_d_is_unknown_without_a_record_of_the_source(tmp_path):
    commit_shard(tmp_path / "c", strategy="paraphrase", style="faq", tokens=4_000_000_000)
    text = ask(tmp_path / "c", "--params", "100M")
    assert "D = unknown" in text
    assert "give the fresh tokens with --fresh-tokens" in text
    assert ask_json(tmp_path / "c", "--params", "100M")["worth"] is None


def test_d_is_estimated_from_the_recorded_size_of_the_source(tmp_path):
    commit_shard(tmp_path / "c", strategy="paraphrase", style="faq", tokens=10, documents=5, chars=8)
    inventory = [{"path": "a.jsonl", "sha256": "a", "documents": 50, "text_bytes": 4_000_000_000}]
    Folder(tmp_path / "c").create("plan/inventory.json", json.dumps(inventory).encode())
    found = ask_json(tmp_path / "c", "--params", "100M")["holdings"]
    assert found["fresh_tokens"] == pytest.approx(1e9), "8 characters for 2 tokens"
    assert found["fresh_from"].startswith("estimated")
    assert "5 of 50 source documents" in found["notes"][0]


def test_uncounted_shards_are_unknown_not_zero(tmp_path):
    commit_shard(tmp_path / "c", strategy="paraphrase", style="faq", tokens=None)
    text = ask(tmp_path / "c", "--params", "100M", "--fresh-tokens", "2B")
    assert "not counted" in text
    commit_shard(tmp_path / "c", strategy="paraphrase", style="math", tokens=2_000_000_000)
    both = ask_json(tmp_path / "c", "--params", "100M", "--fresh-tokens", "2B")
    assert both["worth"] is None, "what is counted is not all there is"
    tokens = {held["style"]: held["tokens"] for held in both["holdings"]["held"]}
    assert tokens == {"faq": None, "math": 2_000_000_000}
    commit_shard(tmp_path / "d", strategy="paraphrase", style="faq", tokens=2_000_000_000)
    together = ask_json(tmp_path / "c", tmp_path / "d", "--params", "100M", "--fresh-tokens", "2B")
    assert {held["tokens"] for held in together["holdings"]["held"] if held["style"] == "faq"} == {None}


def test_tokens_of_a_strategy_the_law_does_not_know_are_left_out_by_name(tmp_path):
    commit_shard(tmp_path / "c", strategy="distill", style="web", tokens=4_000_000_000)
    text = ask(tmp_path / "c", "--params", "100M", "--fresh-tokens", "2B")
    assert "4B tokens of distill are not in D_eff" in text
    assert "D_eff = 2B" in text


def test_a_folder_without_a_manifest_is_one_line(tmp_path):
    with pytest.raises(UserError, match="no manifest"):
        ask(tmp_path, "--params", "100M")
    with pytest.raises(UserError, match="--params"):
        ask(tmp_path, "--params", "many")


def test_other_commands_can_end_with_the_same_lines(tmp_path):
    commit_shard(tmp_path / "c", strategy="fresh", style="source", tokens=2_000_000_000)
    commit_shard(tmp_path / "c", strategy="paraphrase", style="faq", tokens=4_000_000_000)
    said = "\n".join(corpus_lines([str(tmp_path / "c")], params=1e8))
    assert said == ask(tmp_path / "c", "--params", "100M").rstrip("\n")


def test_a_plan_is_valued_like_a_corpus():
    text = "\n".join(forecast({"paraphrase": 4e9}, fresh_tokens=2e9, params=1e8))
    assert "D_eff" in text
    assert "D = 2B" in text


def test_no_loss_is_told_that_a_model_guessing_evenly_would_beat():
    told = "\n".join(forecast({"paraphrase": 2e4}, fresh_tokens=8e3, params=14e6))
    assert "expected loss unknown" in told
    assert "expected loss unknown" not in "\n".join(forecast({"paraphrase": 2e9}, fresh_tokens=8e9, params=190e6))
