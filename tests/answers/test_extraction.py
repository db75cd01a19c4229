"""What is taken for the answer of a text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.answers import begun_box, extract, up_to_brace


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{42}.", "42"),
        (r"\boxed{1} wait, \boxed{2}", "2"),
        (r"\boxed{\frac{1}{2}} done", r"\frac{1}{2}"),
        (r"\boxed{\text{a {b} c}}", r"\text{a {b} c}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{x \mid x > 0 \right.}", r"\left\{x \mid x > 0 \right."),
        (r"\boxed{a \\{b}}", r"a \\{b}"),  # a line break, then a group
        (r"\boxed { 7 }", "7"),
        ("\\boxed{3\n}", "3"),
        (r"The final answer is \boxed{5}, not 6. The answer is 6.", "5"),  # a box goes before phrases
        (r"\boxed 5 is in {braces}", None),
        (r"write it in \boxed, then {x}. The answer is 3.", "3"),
        (r"\boxed{1} and then \boxed{2", None),  # cut while it was written
        (r"\boxed{1} and then \boxed{", None),
        (r"The answer is \boxed{12", None),
        ("The answer is \\", None),
        (r"The answer is \b", None),
        (r"The answer is $\boxe", None),
        (r"The answer is \boxed", None),
        (r"The answer is $$", None),
        (r"The answer is \[", None),
        (r"The answer is \beta", r"\beta"),
        (r"The answer is $\infty$", r"$\infty$"),
        (r"\boxed{}", None),
        (r"\boxed{  }", None),
        (r"\boxed{\frac{1}{2}", None),
        ("The answer is 12.", "12"),
        ("the answer is: 12", "12"),
        ("The answer:\n  -3/4", "-3/4"),
        ("Final answer: x = 2", "x = 2"),
        ("FINAL ANSWER IS B.", "B"),
        ("**Final Answer:** 12", "12"),
        ("The answer is **12**.", "12"),
        ("The answer is 2**3.", "2**3"),
        ("The answer is ***", None),
        ("The answer is \x1f.", None),
        ("The answer is 1.\nNo. The answer is 2.\n", "2"),
        ("The answer is 5. Then again I doubt.", "5"),
        ("The answer is **5.** Then again I doubt.", "5"),
        ("The answer is 2.5. It is exact.", "2.5"),
        ("The answer is 2.5 exactly. or not", "2.5 exactly. or not"),
        ("The answer is 5. No, the answer is 6. Done.", "6"),
        ("The answer is B. Paris", "B"),
        ("The answer is 6\u3002 7 is not", "6"),
        ("The answer is 5.  \nThe rest", "5"),
        ("Answer\uff1a12", "12"),
        ("The answer\u200b is\uff1a \uff11\uff12", "12"),
        ("\u7b54\u6848\uff1a12", "12"),
        ("\u56e0\u6b64\uff0c\u7b54\u6848\u662f 12\u3002", "12"),
        ("The answer is", None),
        ("The answer is .", None),
        ("The answer is \n\n", None),
        ("nothing here", None),
        ("", None),
    ],
)
def test_extract(text, answer):
    assert extract(text) == answer


@settings(deadline=None)
@given(st.text(alphabet="\\boxed{}12 .:*\n$", max_size=40) | st.text(max_size=40))
def test_an_extracted_answer_is_never_empty(text):
    for extracted in (extract(text), extract(f"The answer is {text}"), extract(f"\\boxed{{{text}")):
        assert extracted is None or extracted.strip()


@settings(deadline=None)
@given(st.text(alphabet="ab\\{}", max_size=12))
def test_a_box_holds_what_up_to_brace_reads(text):
    assert extract(f"so \\boxed{{{text}") == (up_to_brace(text) or None)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("5} and so on", "5"),
        ("\\frac{1}{2}}", "\\frac{1}{2}"),
        (" 5 }", "5"),
        ("}", ""),
        ("5", None),
        ("", None),
        ("{5}", None),
        ("{5}}", "{5}"),
        ("\\}5}", "\\}5"),
        ("\\{5}", "\\{5"),
        ("5\\", None),
    ],
)
def test_up_to_brace(text, answer):
    assert up_to_brace(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("the answer is" + "\n" * 100_000, None),
        ("the answer" + " " * 100_000, None),
        ("the answer is " + "\\" * 100_000, None),
        ("the answer is " + "." * 100_000, None),
        ("the answer is ." + "*" * 100_000, None),
        ("the answer is 5." + " " * 100_000 + "x", "5." + " " * 100_000 + "x"),
        ("the answer is " * 10_000, "the answer is " * 9_999),
        ("\\boxed" + " " * 100_000, None),
        ("\\boxed{" * 20_000, None),
        ("\\boxed{" + "{" * 50_000 + "}" * 50_000 + "}", "{" * 50_000 + "}" * 50_000),
    ],
    ids=range(10),
)
def test_hostile_texts_are_read_in_one_pass(text, answer):
    extracted = extract(text)
    assert extracted == (answer if answer is None else answer.strip())


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"Thus, 196 has \( 9 \) positive divisors.", "9"),
        ("Thus, 196 has exactly **9** positive divisors.", "9"),
        (r"the perimeter is \[ P = 6 \times 7 = 42 \] inches", "42"),
        (r"so $x \le 3$.", r"x \le 3"),
        (r"$a = 1$ and then 5 of them", "5"),
        (r"are $\left(3, \frac{\pi}{2}\right)$.", r"\left(3, \frac{\pi}{2}\right)"),
        ("It costs 1,234.50 in all.", "1,234.50"),
        ("so -3/4, I think", "-3/4"),
        ("about 50% of them", "50%"),
        ("The answer is 3. Not 4.", "3"),
        (r"\boxed{3} of 4", "3"),
        (r"\boxed{3 of 4", None),
        ("no number, x1 and v2.0 apart", None),
        ("$ $", None),
        ("", None),
    ],
)
def test_the_last_formula_or_number_is_taken_only_where_the_caller_allows_it(text: str, answer: str | None) -> None:
    assert extract(text, fallback="last") == answer
    if "boxed" not in text and "answer" not in text:
        assert extract(text) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{B}", "B"),
        (r"\boxed{\text{(B) } 12}", "B"),
        ("The answer is (C) because A and B are wrong.", "C"),
        ("Answer: D.", "D"),
        ("So it must be C", "C"),
        ("(A) no\n(B) yes\nI choose (B).", "B"),
        ("I choose E.", None),
        ("Always Be Careful", None),
        (r"\boxed{12}", None),
        ("", None),
    ],
)
def test_choices(text: str, answer: str | None) -> None:
    assert extract(text, choices="ABCD") == answer


def test_the_callers_own_extractor_goes_first_and_may_pass() -> None:
    def tagged(text: str) -> str | None:
        _, found, rest = text.partition("<answer>")
        return rest.partition("</answer>")[0] if found else None

    assert extract(r"<answer> 7 </answer> \boxed{8}", extractor=tagged) == "7"
    assert extract(r"\boxed{8}", extractor=tagged) == "8"
    assert extract(r"<answer> </answer> \boxed{8}", extractor=tagged) == "8"
    assert extract("none", extractor=tagged) is None


@settings(deadline=None)
@given(st.text(alphabet="\\boxed{}12 .:*$ABC()answer\n", max_size=60))
def test_no_way_to_extract_gives_an_empty_answer(text: str) -> None:
    for answer in (extract(text, fallback="last"), extract(text, choices="ABC"), extract(text, extractor=str.strip)):
        assert answer is None or answer.strip()


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("5} so", "5"),
        (r"\frac{1}{2}}\]", r"\frac{1}{2}"),
        ("}", None),
        ("} 5", None),  # closed, and nothing in it
        ("", None),
        (" \n ", None),
        ("12 is it, I think\nand so on", "12 is it, I think"),
        ("\n  \\textbf{Blue Sky}\n\\endbox{}\n\\]\n\nThe sky", r"\textbf{Blue Sky}"),
        ("yes$. I hope it is correct.", "yes"),
        (r"yes\]", "yes"),
        (r"\$5$.", r"\$5"),
        ("$5$", "5"),
        ("Tokyo. The capital is", "Tokyo"),
        ("3.5. So", "3.5"),
        ("3.14", "3.14"),
        ("{1, 2", "{1, 2"),
    ],
)
def test_a_begun_box_is_read_up_to_its_brace_and_else_to_the_end_of_its_line(text, answer):
    assert begun_box(text) == answer
