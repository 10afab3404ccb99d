"""The judgement of generations: what is taken off, what is accepted, and the reason of every reject.

Texts marked `real` are outputs of SmolLM2-135M-Instruct on the sample corpus, as they came.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from derivedata.corpus.sample import sample_documents
from derivedata.generation.arithmetic import wrong_calculations
from derivedata.generation.filters import CHANGES, REASONS, judge
from derivedata.generation.forms import pairs, tables
from derivedata.generation.style import AcceptRules, Style, load_style

SOURCES = {document["id"]: document["text"] for document in sample_documents()}
TIDES, CURIE, SHOP, BODENSEE = (SOURCES[name] for name in ("tides", "marie-curie", "farm-shop", "bodensee"))


def style(**rules) -> Style:
    return Style(name="tale", description="d", instruction="Tell it as a story.", accept=AcceptRules(**rules))


def reason(text: str, of: Style | None = None, source: str = TIDES, finish: str = "stop") -> str | None:
    verdict = judge(text, source, of or style(), finish)
    assert verdict.accepted == (verdict.reason is None)
    assert verdict.reason is None or verdict.reason in REASONS
    assert set(verdict.changes) <= set(CHANGES)
    assert verdict.accepted or verdict.text == text  # a reject keeps what the model wrote
    return verdict.reason


QUIZ = """\
Question: How far apart are two high tides on most coasts?
Answer: They follow each other after about 12 hours and 25 minutes, because the Moon has moved on meanwhile.

Question: When do spring tides occur?
Answer: At new moon and at full moon, when the effects of the Sun and the Moon add up.
"""

TABLE = """\
| Kind of tide | When | Effect |
| --- | --- | --- |
| Spring tide | New and full moon | Sun and Moon add up |
| Neap tide | First and last quarter | The effects partly cancel |

The table compares the two kinds of tides. Their difference comes from the Sun.
"""

PROBLEM = """\
Problem: The farm shop had 42 customers on Monday and 110 on Saturday. The average purchase was 14 euros. How much \
more did the shop take on Saturday than on Monday?
Solution: Saturday had 110 - 42 = 68 more customers. They spent 68 * 14 = 952 euros.
Answer: 952 euros
"""


def test_good_texts_of_each_form_are_accepted_as_they_are():
    for name, text, source in (("question", QUIZ, TIDES), ("table", TABLE, TIDES), ("math", PROBLEM, SHOP)):
        verdict = judge(text, source, load_style(name), "stop")
        assert (verdict.accepted, verdict.text, verdict.changes) == (True, text.strip(), ()), verdict


@pytest.mark.parametrize("text", ["", " \n\t ", "\u200b \n"[1:], "Sure!", "Here is the table you asked for:\n"])
def test_nothing_is_empty(text):
    assert reason(text) == "empty"


@pytest.mark.parametrize(
    "preamble",
    [
        "Sure, here is a list of questions about tides:\n\n",
        "Sure! Here are five questions and answers:\n",
        "Certainly! Below is the table.\n\n---\n\n",
        "Here's a quiz with questions and answers based on the text:\n\n",
        "**Here is the rewritten text:**\n\n",
        "I'd be happy to help! Here is the FAQ:\n",
        "Natürlich! Hier ist eine Tabelle mit den wichtigsten Fragen:\n\n",
        "Voici un tableau des faits principaux :\n\n",
        "¡Claro! Aquí tienes las preguntas y respuestas:\n\n"[1:],
        "好的,以下是根据文章写的问题和答案:\n\n",
    ],
)
def test_the_announcement_in_front_is_taken_off(preamble):
    verdict = judge(preamble + QUIZ, TIDES, style(same_language=False), "stop")
    assert verdict.text == QUIZ.strip()
    assert verdict.changes == ("preamble_removed",)


@pytest.mark.parametrize(
    "opening",
    [
        "Here the river bends to the north, and the valley opens.\n",
        "This is how the tide works on most coasts: the Moon pulls.\n",
        "Great storms raise the water further.\n",
        "Certain bays have a large range.\n",
        "Okayama lies on the Inland Sea.\n",
    ],
)
def test_a_text_that_only_begins_like_an_announcement_keeps_its_beginning(opening):
    assert judge(opening + QUIZ, TIDES, style(), "stop").text == (opening + QUIZ).strip()


@pytest.mark.parametrize(
    "farewell",
    [
        "\n\nLet me know if you need more questions!",
        "\nI hope this helps!",
        "\n\n---\nFeel free to ask if anything is unclear.",
        "\n\nWould you like me to add an example?",
    ],
)
def test_the_offer_at_the_end_is_taken_off(farewell):
    verdict = judge(QUIZ + farewell, TIDES, style(), "stop")
    assert (verdict.text, verdict.changes) == (QUIZ.strip(), ("farewell_removed",))


def test_fence_thinking_and_control_characters_are_taken_off():
    text = "<think>\nThe user wants a table.\n</think>\n\n```markdown\n" + TABLE.replace("Sun", "S\x00un") + "```"
    verdict = judge(text, TIDES, load_style("table"), "stop")
    assert verdict.text == TABLE.strip()
    assert verdict.changes == ("control_characters_removed", "thinking_removed", "fence_removed")


@pytest.mark.parametrize(
    "text",
    [
        "I'm sorry, but I can't help with that request.",
        "As an AI language model, I don't have access to documents.",
        "I cannot generate a math problem from this.",
        "Es tut mir leid, aber ich kann das nicht tun.",
        "Je suis désolé, mais je ne peux pas.",
        "抱歉,我无法完成这个任务。",
    ],
)
def test_refusals(text):
    assert reason(text + " " + TIDES[:300]) == "refusal"


def test_a_story_in_which_somebody_is_sorry_is_no_refusal():
    assert (
        reason('He looked at the ridge. "It is late," said Mira. ' * 1 + "I'm sorry, that was my map.", source="x")
        == "refusal"
    )
    source = "I'm sorry, that was my fault, she wrote, and it was true. They walked on to the hut."
    assert reason("I'm sorry, that was my fault, she wrote. Then they walked on.", source=source) is None


@pytest.mark.parametrize(
    "text",
    [
        "<|im_start|>user\nTell it.",
        QUIZ + "\n<|im_end|>",
        "Question: ...\nAnswer: ...\n" + QUIZ,
        "| [Title] | [Answer] |\n",
        "[Insert question here]\n" + QUIZ,
    ],
)
def test_template_and_placeholders_are_leaks(text):
    assert reason(text) == "prompt_leak"


def test_a_repeated_instruction_is_a_leak():
    asked = load_style("question")
    sentence = asked.instruction.split(".")[0]
    assert reason(f"{sentence}.\n\n{QUIZ}", asked) == "prompt_leak"


def test_words_that_the_document_shares_with_the_instruction_are_no_leak():
    shared = "Tell it as a story of the sea and the Moon."
    asked = replace(style(), instruction=shared)
    assert reason(shared, asked, source=TIDES) == "prompt_leak"
    assert reason(shared, asked, source=TIDES + " " + shared) is None


def test_talk_about_the_text_is_rejected():
    # real (table, fire-of-london)
    text = (
        "The text above is a detail from a historical document. It provides information on a significant event in "
        "1666, including details about the fire, the rebuilding of the city, and the number of people lost."
    )
    assert reason(text, source=SOURCES["fire-of-london"]) == "about_the_text"


def test_a_document_about_texts_may_be_talked_about():
    source = "The text was found in 1947 in a cave. The text is written on leather and tells of a long war."
    assert reason("The text, found in a cave in 1947, tells of a long war.", source=source) is None


@pytest.mark.parametrize(
    "text",
    [
        # real (math, fire-of-london)
        "The problem is: \nIf 202 feet is equal to 200 meters, then the answer is 100.\n\n"
        + "The answer is 100.\n\n" * 20,
        "The tide is high.\n" * 4,
        # real (faq, la-papa), shortened
        "La llevaron a la historia de cien a las cien. "
        + "La llevaron a la historia de todos los cientos de más. " * 8,
        # real (question, fire-of-london)
        "Question: "
        + 'What is a possible answer to the following question: "'
        + "What is a possible answer to the question '" * 12,
        # real (question.sep, marie-curie), shortened: the labels differ, the words don't
        "".join(
            f"Question {i}: What is the name of the woman who first found radium?\nAnswer: Curie\n" for i in range(9)
        ),
    ],
)
def test_loops_are_repetition(text):
    assert reason(text, source="") == "repetition"


def test_labels_and_table_bars_are_no_repetition():
    rows = "".join(
        f"| {name} | {size} km | {days} days |\n"
        for name, size, days in (
            ("Mercury", "4,900", 88),
            ("Venus", "12,100", 225),
            ("Earth", "12,700", 365),
            ("Mars", "6,800", 687),
        )
    )
    assert reason("| Planet | Diameter | Orbit |\n|---|---|---|\n" + rows, source=SOURCES["planets"]) is None
    short = "".join(f"Question: Is {n} even?\nAnswer: {'No' if n % 2 else 'Yes'}, {n} is.\n" for n in (3, 8, 11, 20))
    assert reason(short, source="") is None


def test_a_loop_at_the_end_is_taken_off_where_the_style_takes_parts():
    # real (question.sep, marie-curie)
    text = (
        "Question: What was the name of the woman who first discovered radioactivity?\n"
        "Answer: Marie Skłodowska-Curie\n\n"
        "Question: Who was the first woman to lecture at the Sorbonne?\nAnswer: Marie Skłodowska-Curie, in 1906\n\n"
    )
    loop = "Question: Who was the first woman to lecture at the Sorbonne?\nAnswer: She was.\n\n" * 8
    verdict = judge(text + loop, CURIE, style(form="qa", allow_truncated=True), "length")
    assert verdict.accepted, verdict
    assert verdict.changes == ("loop_removed",)
    assert verdict.text == text.strip()
    assert reason(text + loop, style(form="qa"), CURIE) == "repetition"


def test_a_line_that_returns_once_is_no_loop():
    text = "The tide is coming in again.\nBoats rise.\nThe tide is coming in again.\nThe sand is covered.\n"
    text += "Gulls settle on the sea wall and wait.\nA child runs home along the dry upper path."
    assert judge(text, TIDES, style(allow_truncated=True), "stop").text == text


def test_a_loop_that_the_engine_stopped_is_cut_off_too():
    assert reason("The Moon pulls on the sea. It pulls", style(), finish="repetition") == "truncated"


def test_cut_off_texts_are_kept_to_the_last_complete_sentence_only_where_the_style_allows():
    text = "The Moon pulls on the sea. It raises two bulges, e.g. near the equ"
    assert reason(text, style(), finish="length") == "truncated"
    verdict = judge(text, TIDES, style(allow_truncated=True), "length")
    assert (verdict.text, verdict.changes) == ("The Moon pulls on the sea.", ("cut_to_complete",))
    assert reason("The Moon pulls on the", style(allow_truncated=True), finish="length") == "truncated"


def test_a_question_that_was_cut_off_before_its_answer_goes():
    cut = QUIZ + "\nQuestion: Why is the range so large in the Bay of Fundy?\nAnswer: The length of"
    verdict = judge(cut, TIDES, load_style("question"), "length")
    assert verdict.text == QUIZ.strip()


def test_a_row_that_was_cut_off_goes():
    rows, _, _ = TABLE.partition("\n\n")
    assert judge(rows + "\n| Storm tide | When the wi", TIDES, load_style("table"), "length").text == rows


def test_a_numbered_line_is_no_complete_sentence():
    verdict = judge("The Moon pulls. The Sun does too.\n\n1. First\n2.", TIDES, style(allow_truncated=True), "length")
    assert verdict.text == "The Moon pulls. The Sun does too."


def test_lengths_are_against_the_style_and_the_source():
    assert reason("Short.", style(min_chars=10)) == "too_short"
    assert reason("Short enough.", style(min_ratio=0.5)) == "too_short"
    assert reason(QUIZ, style(max_chars=100)) == "too_long"
    assert reason(QUIZ, style(max_ratio=3), source=TIDES[:90]) == "too_long"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("qa", "The Moon pulls on the sea. It raises two bulges."),
        ("qa", "Question:\nQ: Which airport runs on the power of the Sun, and since when?\nA: The answer is:"),  # real
        ("faq", "Question: What raises the tides?\nAnswer: The Moon does.\n"),
        ("qa", "1. What raises the tides?\n2. When are spring tides?\n3. Where is the range large?"),
        ("table", QUIZ),
        ("table", "| Tide | When |\n| Spring | Full moon |\n| Neap | Quarter |"),
        ("table", "| Tide |\n| --- |\n| Spring |\n| Neap |"),
        ("table", "| Tide | When |\n| --- | --- |\n| Spring | Full moon |\n| Spring | Full moon |"),
        ("table", "| Tide | When |\n| --- | --- |\n| | |\n| - | - |"),
        ("problem", TIDES),
        ("problem", "Problem: How many tides are there a day?\nSolution: 1 + 1 = 2\nAnswer: 2"),
        ("qa", QUIZ + "\nQuestion: And the Sun?\nQuestion: And the wind?\nQuestion: And the shape of the coast?\n"),
        ("table", "| Tide | When |\n| --- | --- |\n| Spring | Full | moon |\n| Neap | First | Last |\n| High | Noon |"),
        (
            "problem",
            "Problem: Tides are 12 hours and 25 minutes apart. How long do four take?\nSolution: 4 hours.\nAnswer: 4",
        ),
        (
            "problem",
            "Problem: A boat waits 12 hours, then 25 minutes. How long?\nSolution: 12 + 25 = 37\n"
            + SOURCES["ridge-walk"][:400],
        ),
        (
            "problem",
            "Problem: A boat waits 12 hours, then 25 minutes. How long?\nSolution: It waits.\nAnswer: A while.",
        ),
        ("problem", "A boat waits 12 hours and 25 minutes, then 12 hours. How long does it wait?"),
        ("prose", "# Tides\n- two a day\n- Moon\n- Sun\n"),
    ],
)
def test_a_text_without_its_form_is_refused(form, text):
    assert reason(text, style(form=form)) == "wrong_form"


@pytest.mark.parametrize(
    "text",
    [
        "**Q1: What raises the tides?**\n\nThe Moon does, mostly.\n\n**Q2: And the Sun?**\n\nIt helps a little.",
        "1. What raises the tides?\n   The Moon does, mostly.\n2. And the Sun?\n   It helps a little.",
        "### What raises the tides?\nThe Moon does.\n\n### And the Sun?\nIt helps a little.",
        "Question: What raises the tides? Answer: The Moon does.\nQuestion: And the Sun? Answer: It helps.",
        "Frage: Was hebt das Meer?\nAntwort: Der Mond hebt es.\nFrage: Und die Sonne?\nAntwort: Auch ein wenig.",
        "问:什么引起潮汐?\n答:主要是月亮。\n问:太阳呢?\n答:太阳也有作用。",
    ],
)
def test_questions_and_answers_are_recognised_however_they_are_written(text):
    assert len(pairs(text)) == 2
    assert reason(text, style(form="qa", same_language=False)) is None


def test_tables_are_read_into_cells():
    assert tables(TABLE) == [
        [
            ["Kind of tide", "When", "Effect"],
            ["Spring tide", "New and full moon", "Sun and Moon add up"],
            ["Neap tide", "First and last quarter", "The effects partly cancel"],
        ]
    ]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("48 / 16 = 3 and 3 * 2.1 = 6.3", []),
        ("42 customers * 14 euros = 588 euros", []),
        ("$14 × 42 = $588", []),
        ("1,000 * 1.05 = 1,050 = 1000 + 50", []),
        ("100 / 3 = 33.3", []),
        ("900 - 720 = 180 kg, and 180 kg x 0.65 = 117", []),
        ("\\frac{48}{16} = 3", []),
        ("(3 + 4) * 2 = 14, 2x + 3 = 9, 10 = 10, 2^3 = 8", []),
        ("2 + 3 = 6", ["2 + 3 = 6"]),
        ("The total is 14 * 2 + 38 = 34 apples.", ["14 * 2 + 38 = 34 apples"]),  # real (math, farm-shop)
        ("10 / 0 = 5", []),
        ("10 - 4 = 6 + 1 = 7", ["10 - 4 = 6 + 1 = 7"]),
    ],
)
def test_plain_calculations_are_checked(text, wrong):
    assert wrong_calculations(text) == wrong


def test_a_problem_with_a_wrong_calculation_is_refused():
    assert reason(PROBLEM.replace("952", "925"), load_style("math"), SHOP) == "wrong_arithmetic"


def test_a_copy_of_the_source_is_refused():
    assert reason(TIDES[:600], style(max_overlap=0.5)) == "copy"
    assert reason(QUIZ, style(max_overlap=0.5)) is None
    assert reason(TIDES[:600], style()) is None


def test_a_copy_in_a_language_without_spaces_is_seen_too():
    source = SOURCES["grand-canal"]
    assert reason(source[:120], style(max_overlap=0.5), source) == "copy"


def test_a_text_about_something_else_is_refused():
    # real (question, binary-search)
    text = (
        "Which of the following is not a feature of Python? The ability to create a nested dictionary, the ability to "
        "import modules, or the ability to declare private classes without a keyword?"
    )
    assert reason(text, style(min_shared_words=0.2)) == "off_topic"
    assert reason(QUIZ, style(min_shared_words=0.2)) is None


def test_invented_numbers_are_refused_but_numbering_is_free():
    text = "1. The tide of 1931 rose 40 metres.\n2. In 1822 it rose 71 metres.\n3. It takes 12 hours."
    assert reason(text, style(min_known_numbers=0.5)) == "invented_numbers"
    known = "1. It takes 24 hours and 50 minutes.\n2. Tides are 12 hours apart.\n3. In Canada they exceed 15 metres."
    assert reason(known, style(min_known_numbers=1.0)) is None


def test_another_language_than_the_source_is_refused():
    english = "The lake lies at the edge of the Alps, and it was formed by a glacier at the end of the last ice age."
    assert reason(english, style(), BODENSEE) == "other_language"
    assert reason(english, style(), SOURCES["fuji"]) == "other_language"
    assert reason(english, style(same_language=False), BODENSEE) is None
    assert (
        reason("Der See liegt am Rand der Alpen und ist tief, und er wird vom Rhein gespeist.", style(), BODENSEE)
        is None
    )


def test_the_same_text_gets_the_same_verdict():
    first = judge(QUIZ, TIDES, load_style("question"), "stop")
    assert all(judge(QUIZ, TIDES, load_style("question"), "stop") == first for _ in range(3))


def test_odd_texts_are_judged_without_a_failure():
    rules = replace(load_style("faq"), accept=AcceptRules(form="faq", max_overlap=0.1, min_shared_words=0.5))
    for text in (
        "\ud800" * 50,
        "|" * 4000,
        "?" * 4000,
        "*" * 4000,
        "\n" * 4000 + "x",
        "Question:\n" * 500,
        "a " * 4000,
        "1." * 3000,
    ):
        judge(text, "", rules, "length")
        judge(text, text, load_style("table"), "length")
        judge(text, text, load_style("math"), None)


def test_the_readme_of_the_styles_says_what_every_reason_and_change_means():
    readme = (Path(__file__).parents[2] / "styles" / "README.md").read_text("utf-8")
    for name, meaning in (REASONS | CHANGES).items():
        assert f"| {name} | {meaning} |" in readme
