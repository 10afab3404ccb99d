"""Samples and the page of a corpus: seeded, safe to print, each document beside its source."""

from __future__ import annotations

import json
import shutil

import pytest

from derivedata.cli import main
from derivedata.errors import UserError
from derivedata.pipelines.corpus_report import build_page, write_report
from derivedata.pipelines.draw import draw
from derivedata.pipelines.repeat_run import RepeatOptions, repeat_corpus
from tests.pipelines.outputs import made, out  # noqa: F401
from tests.report.test_page import Reader


def test_the_same_seed_draws_the_same_documents(out):  # noqa: F811
    one, two, other = (draw(str(out), 9, seed=seed) for seed in (1, 1, 2))
    uids = [[drawn.document.uid for drawn in drawing.drawn] for drawing in (one, two, other)]
    assert uids[0] == uids[1] != uids[2]
    assert len(set(uids[0])) == 9 and one.documents > 30


def test_every_document_has_the_same_chance(made):  # noqa: F811
    seen: dict[str, int] = {}
    for seed in range(120):
        for drawn in draw(str(made / "in"), 4, seed=seed).drawn:
            seen[drawn.document.id] = seen.get(drawn.document.id, 0) + 1
    # 120 draws of 4 from 24: 20 each, give or take 4.1.
    assert len(seen) == 24 and min(seen.values()) > 6 and max(seen.values()) < 36


def test_a_derived_document_comes_with_its_source(out):  # noqa: F811
    for drawn in draw(str(out), 6, style="faq").drawn:
        assert drawn.origin.style == "faq"
        derivation = drawn.document.metadata["derivedata"]
        assert drawn.source.uid == derivation["source_uid"] and drawn.source.id == derivation["source_id"]


def test_asking_for_more_than_there_is_gives_all(made):  # noqa: F811
    assert len(draw(str(made / "in"), 500).drawn) == 24


def test_an_empty_corpus_is_said_to_be_empty(tmp_path):
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(UserError, match="holds no document"):
        draw(str(tmp_path), 5)


def test_sources_that_are_gone_are_missed_in_words(out, made, capsys):  # noqa: F811
    record = json.loads((out / "run.json").read_text())
    record["config"]["extent"]["corpus"] = [str(out / "nowhere")]
    (out / "run.json").write_text(json.dumps(record))
    main(["sample", str(out), "-n", "2"])
    printed = capsys.readouterr()
    assert "the sources are not shown" in printed.err and "derived from" not in printed.out


def test_the_command_prints_nothing_that_steers_a_terminal(tmp_path, capsys):
    (tmp_path / "c").mkdir()
    rows = [{"text": "red \x1b[31m and \x9b, then\nnext line " + "x" * 900, "id": "\x1b]0;title\x07"}]
    (tmp_path / "c" / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    main(["sample", str(tmp_path / "c")])
    printed = capsys.readouterr().out
    assert all(c.isprintable() or c == "\n" for c in printed)
    assert "next line" in printed and "characters more" in printed
    assert max(map(len, printed.splitlines())) <= 100
    main(["sample", str(tmp_path / "c"), "--json"])
    line = capsys.readouterr().out
    assert "\x9b" not in line and json.loads(line)["document"]["text"] == rows[0]["text"]


def test_the_page_shows_lineage_counts_lengths_rejects_and_pairs(out, tmp_path):  # noqa: F811
    page = tmp_path / "report.html"
    write_report(str(out), str(page), examples=2)
    text = page.read_text()
    reader = Reader(text)
    assert reader.open == [] and "script" not in reader.tags
    assert all(address.startswith(("#", "data:")) for address in reader.addresses)
    for section in ("What is in it", "Where it comes from", "Lengths", "Documents beside their sources"):
        assert section in text
    assert "part-0.jsonl.gz" in text and "fake" not in text.split("<body>")[0]
    assert text.count('class="pair"') == 4 and text.count("of its words marked") == 4
    assert "24 documents of 2 source files were derived from" in text
    assert "books of generation: planned 48" in text
    assert {path.name for path in tmp_path.iterdir()} <= {"cache", "out", "report.html"}, "nothing is left beside it"


def test_rejects_are_shown_with_their_reason_and_text(out, made):  # noqa: F811
    text = build_page(str(out)).render()
    rejected = [json.loads(line) for path in (out / "rejected").glob("*") for line in _lines(path)]
    assert rejected, "the fake server gives some answers that are turned down"
    assert "What was rejected" in text
    assert all(row["reason"] in text for row in rejected)


def _lines(path) -> list[bytes]:
    import zstandard

    with zstandard.ZstdDecompressor().stream_reader(path.read_bytes(), read_across_frames=True) as stream:
        return stream.read().splitlines()


def test_a_corpus_without_a_manifest_has_a_page_too(made, tmp_path, capsys):  # noqa: F811
    corpus = shutil.copytree(made / "in", tmp_path / "in")
    main(["report", str(corpus), "-o", str(tmp_path / "page.html"), "--examples", "2"])
    assert "written to" in capsys.readouterr().out
    text = (tmp_path / "page.html").read_text()
    assert "24 documents in" in text and "<blockquote>" in text and "How long documents are" in text


def test_what_cannot_be_written_is_one_line(made, tmp_path):  # noqa: F811
    with pytest.raises(UserError, match="no such folder"):
        write_report(str(made / "in"), str(tmp_path / "no" / "page.html"))
    with pytest.raises(UserError):
        write_report(str(made / "in"), str(tmp_path))
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}.*"))  # nothing half made stays


def test_documents_of_an_order_know_their_sources(out, tmp_path):  # noqa: F811
    order = str(tmp_path / "order")
    repeat_corpus(RepeatOptions(corpus=(str(out),), output=order, epochs=2, virtual=True, count_tokens=False))
    drawing = draw(order, 8, seed=5)
    assert drawing.note is None
    for drawn in drawing.drawn:
        assert drawn.source.uid == drawn.document.metadata["derivedata"]["source_uid"]


def test_the_first_epoch_of_an_order_of_derived_documents_is_not_called_fresh(out, made, tmp_path, capsys):  # noqa: F811
    main(["repeat", str(out), "-o", str(tmp_path / "order"), "--epochs", "2", "--virtual", "--no-count"])
    told = capsys.readouterr().out
    assert "paraphrase" in told and "fresh" not in told
    main(["repeat", str(made / "in"), "-o", str(tmp_path / "plain"), "--epochs", "2", "--virtual", "--no-count"])
    assert "fresh" in capsys.readouterr().out
