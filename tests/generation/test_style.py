"""Styles: what a file may hold, what is refused and how it is said, and which documents a style takes."""

from __future__ import annotations

import pytest

from derivedata.errors import UserError
from derivedata.generation.style import Style, load_style, load_styles, resolve_fallbacks, shipped_styles
from derivedata.generation.wording import rules_in_words, template

SMALLEST = """\
name: tale
description: A bedtime story.
instruction: |
  Tell the text above as a story.
"""


@pytest.fixture
def written(tmp_path):
    """Writes a style file and gives its path as text."""

    def write(text: str, name: str = "tale.yaml") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def refusal(path: str) -> str:
    with pytest.raises(UserError) as caught:
        load_style(path)
    return caught.value.line


def test_the_four_shipped_styles_load_by_name():
    assert list(shipped_styles()) == ["faq", "math", "question", "table"]
    for name in shipped_styles():
        style = load_style(name)
        assert style.name == name
        assert "text above" in style.instruction  # the document comes first


def test_shipped_styles_have_no_system_text_of_their_own_so_that_they_share_a_prefix():
    assert {load_style(name).system for name in shipped_styles()} == {None}


def test_a_file_needs_only_name_description_and_instruction(written):
    style = load_style(written(SMALLEST))
    assert (style.name, style.version, style.instruction) == ("tale", 1, "Tell the text above as a story.")
    assert (style.sampling.temperature, style.on_long, style.fallback) == (0.7, "split", None)


@pytest.mark.parametrize("field", ["name", "description", "instruction"])
def test_a_missing_field_is_named(written, field):
    kept = Style(name="tale", description="d", instruction="i").to_dict()
    lines = "".join(f"{key}: {kept[key]}\n" for key in ("name", "description", "instruction") if key != field)
    assert f"has no `{field}`" in refusal(written(lines))


def test_an_unknown_key_is_refused_with_the_nearest_known_one_and_its_line(written):
    line = refusal(written(SMALLEST + "sampling:\n  temperatur: 0.5\n"))
    assert "tale.yaml:6: sampling.temperatur: unknown key" in line
    assert "id you mean temperature?" in line


def test_an_unknown_section_without_a_near_one_lists_what_is_known(written):
    assert "nown here: accept, applies_when" in refusal(written(SMALLEST + "zzz: 1\n"))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("sampling: {temperature: hot}", "sampling.temperature: must be a number from 0 to 2 (got hot)"),
        ("sampling: {temperature: 3}", "from 0 to 2"),
        ("sampling: {top_k: 0}", "rite -1 to keep all tokens"),
        ("sampling: {max_tokens: true}", "must be a whole number from 1 to 131072 (got True)"),
        ("sampling: {max_tokens: 1.5}", "must be a whole number"),
        ("sampling: 3", "sampling: must be a mapping (got 3)"),
        ("source: {min_tokens: 9, max_tokens: 5}", "source.max_tokens: is below min_tokens"),
        ("source: {on_long: splitt}", "id you mean split?"),
        ("accept: {form: FAQ}", "accept.form: is not one of the choices (got FAQ)"),
        ("accept: {allow_truncated: yes}", "must be true or false (got yes)"),
        ("accept: {max_overlap: 1.5}", "from 0 to 1"),
        ("accept: {min_ratio: 2, max_ratio: 1}", "is below min_ratio"),
        ("applies_when: {min_numbers: two}", "applies_when.min_numbers: must be a whole number from 0"),
        ("applies_when: {otherwise: tale}", "names the style itself"),
        ("version: two", "version: must be a whole number"),
        ("system: 7", "system: must be text (got 7)"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field_and_value(written, fields, said):
    line = refusal(written(SMALLEST + fields + "\n"))
    assert said in line
    assert "tale.yaml:5: " in line


@pytest.mark.parametrize("name", ["Faq", "a b", "../x", "skip", "default", "é", "7up", "x" * 41])
def test_a_name_that_can_be_no_folder_is_refused(written, name):
    assert "is not a name for a style" in refusal(written(SMALLEST.replace("tale", f'"{name}"')))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: !!python/object/apply:os.system [ls]\n", "uses a tag"),
        ("a: &x [1]\nb: *x\n", "uses an anchor or alias"),
        ("name: a\nname: b\n", "gives a field twice"),
        ("name: a\n---\nname: b\n", "second YAML document"),
        ("- name\n", "no mapping"),
        ("", "no mapping"),
        ("name: [\n", "is not valid YAML"),
        ("name: " + "[" * 50 + "]" * 50 + "\n", "nested deeper than 8"),
        ("? [a]\n: b\n", "a key that is not a word"),
        ("description: " + "x" * 70_000, "larger than 64 KiB"),
        ("name: \x00\n", "is not valid YAML"),
    ],
)
def test_yaml_beyond_plain_data_is_refused(written, text, said):
    assert said in refusal(written(text))


def test_a_file_that_is_not_utf8_is_refused(tmp_path):
    (tmp_path / "x.yaml").write_bytes(b"name: caf\xe9\n")
    assert "is not UTF-8 (byte 9)" in refusal(str(tmp_path / "x.yaml"))


def test_a_byte_order_mark_is_no_problem(written):
    assert load_style(written("\ufeff" + SMALLEST)).name == "tale"


def test_words_that_yaml_would_turn_into_something_else_stay_text(written):
    style = load_style(written(SMALLEST.replace("A bedtime story.", "12:30")))
    assert style.description == "12:30"
    assert load_style(written(SMALLEST.replace("tale", "no", 1))).name == "no"


def test_a_misspelt_name_gets_the_nearest_one_and_the_list():
    line = refusal("questoin")
    assert "id you mean question?" in line
    assert "faq, math, question, table" in line


def test_the_hash_is_over_what_alters_a_text(written):
    first = load_style(written(SMALLEST))
    same = load_style(written("# a comment\n" + SMALLEST.replace("bedtime", "long") + "version: 9\n", "moved.yaml"))
    integer = load_style(written(SMALLEST + "sampling: {temperature: 1}\n", "a.yaml"))
    number = load_style(written(SMALLEST + "sampling: {temperature: 1.0}\n", "b.yaml"))
    other = load_style(written(SMALLEST.replace("story", "play"), "c.yaml"))
    assert first.sha256 == same.sha256
    assert integer.sha256 == number.sha256
    assert len({first.sha256, integer.sha256, other.sha256}) == 3


def test_two_styles_of_one_name_are_refused_with_both_files(written):
    mine = written(SMALLEST.replace("tale", "faq"))
    with pytest.raises(UserError, match=r"two styles are named faq: .*faq.yaml and .*tale.yaml"):
        load_styles(["faq", mine])
    with pytest.raises(UserError, match=r"give it once|Give it once"):
        load_styles(["faq", "faq"])


def test_several_styles_keep_the_order_given():
    assert list(load_styles(["table", "faq"])) == ["table", "faq"]


def test_a_fallback_that_is_not_there_is_refused(written):
    mine = written(SMALLEST + "applies_when: {min_numbers: 2, otherwise: questoin}\n")
    with pytest.raises(UserError) as caught:
        load_styles([mine])
    assert "applies_when.otherwise: names a style that isn't there (got questoin)" in caught.value.line


def test_fallbacks_that_lead_in_a_circle_are_refused(written):
    one = written(SMALLEST.replace("tale", "one") + "applies_when: {otherwise: two}\n", "one.yaml")
    two = written(SMALLEST.replace("tale", "two") + "applies_when: {otherwise: one}\n", "two.yaml")
    with pytest.raises(UserError, match="one -> two -> one"):
        load_styles([one, two])


def test_math_hands_documents_without_numbers_to_question():
    styles = load_styles(["math"])
    assert styles["math"].unsuitable("Two hikers walk home. " * 30, 150) == "too_few_numbers"
    assert styles["math"].unsuitable("Two hikers walk 12 km in 3 hours. " * 30, 300) is None
    assert [style.name for style in resolve_fallbacks(styles["math"], styles)] == ["question"]


def test_length_limits_say_why_a_document_is_skipped(written):
    style = load_style(written(SMALLEST + "source: {min_tokens: 5, max_tokens: 9, on_long: skip}\n"))
    assert style.unsuitable("word", 4) == "source_too_short"
    assert style.unsuitable("  \n", 7) == "source_too_short"
    assert style.unsuitable("word", 9) is None
    assert style.unsuitable("word", 10) == "source_too_long"
    assert load_style(written(SMALLEST + "source: {max_tokens: 9}\n")).unsuitable("word", 10**6) is None


def test_the_template_of_a_new_style_is_a_good_style(written):
    style = load_style(written(template("dialogue"), "dialogue.yaml"))
    assert style.name == "dialogue"
    assert "drawn at temperature 0.7" in "\n".join(rules_in_words(style))


def test_the_opening_is_written_for_the_model_and_part_of_the_answer(written):
    style = load_style(written(SMALLEST + 'opening: "Question: "\n'))
    assert style.opening == "Question:"  # the space belongs to the model's first word
    assert style.with_opening(" Why?") == "Question: Why?"
    assert style.with_opening(" Question: Why?") == " Question: Why?"
    assert load_style(written(SMALLEST)).with_opening("Why?") == "Why?"
