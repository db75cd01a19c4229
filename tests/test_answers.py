"""Extraction, and a notion of equality that is exact where it decides and honest where it cannot."""

from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scaffolding_ext.answers import AnswerClasses, Verdict, compare, extract, normalize, up_to_brace

EQUAL, DIFFERENT, UNDETERMINED = Verdict

# ---- extraction


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
        ("The answer is 5.  \nThe rest", "5"),
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


# ---- comparison


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ("5", "5", EQUAL),
        ("5", "6", DIFFERENT),
        ("-3", "3", DIFFERENT),
        ("+3", "3", EQUAL),
        ("-0", "0", EQUAL),
        ("0.5", r"\frac12", EQUAL),
        ("0.5", r"\dfrac{1}{2}", EQUAL),
        (r"-\tfrac{1}{2}", "-0.5", EQUAL),
        (r"\frac{-1}{2}", "-1/2", EQUAL),
        ("2/4", "1/2", EQUAL),
        ("1/3", "0.3333", DIFFERENT),
        ("1/0", "2/0", UNDETERMINED),
        ("1/0", "1/0", EQUAL),
        (".5", "0.50", EQUAL),
        ("1,234,567", "1234567", EQUAL),
        (r"1,\!234", "1234", EQUAL),
        (r"1\,234", "1234", EQUAL),
        ("1,234.5", "1234.50", EQUAL),
        ("1,2", "12", UNDETERMINED),
        ("1,23", "123", UNDETERMINED),
        ("0,500", "500", UNDETERMINED),
        ("12,3456", "123456", UNDETERMINED),
        ("1 2", "12", UNDETERMINED),
        ("3 1/2", "31/2", UNDETERMINED),
        (r"3\ 1/2", "31/2", UNDETERMINED),
        (r"3\,1/2", "31/2", UNDETERMINED),
        ("$3$ 1/2", "31/2", UNDETERMINED),
        ("3 1/2", "3  1/2", EQUAL),
        ("$ 5 $.", "5", EQUAL),
        (r"\left( 1, 2 \right)", "(1,2)", EQUAL),
        ("(1,2)", "12", UNDETERMINED),
        (r"\text{Paris}", "Paris", EQUAL),
        (r"\text{yes}", "Yes", EQUAL),
        ("TRUE", "true", EQUAL),
        ("yes", "no", DIFFERENT),
        ("a", "A", EQUAL),
        ("x", "X", DIFFERENT),
        ("x_A", "x_a", UNDETERMINED),
        ("A", "B", DIFFERENT),
        ("A", "5", DIFFERENT),
        ("New York", "NewYork", EQUAL),
        ("x+1", "1+x", UNDETERMINED),
        ("[0,1)", "[0,1]", UNDETERMINED),
        ("(0,1]", "[0,1]", UNDETERMINED),
        ("1<x<2", "(1,2)", UNDETERMINED),
        ("11_2", "11", UNDETERMINED),
        ("5 cm", "5", UNDETERMINED),
        ("50%", r"50\%", EQUAL),
        ("50%", "50.0%", EQUAL),
        ("50%", "60%", DIFFERENT),
        ("50%", "50", UNDETERMINED),
        ("50%", "0.5", UNDETERMINED),
        ("", "", UNDETERMINED),
        ("$$", "", UNDETERMINED),
        ("", "5", UNDETERMINED),
    ],
)
def test_compare(a, b, verdict):
    assert compare(a, b) is verdict
    assert compare(b, a) is verdict


_INTEGERS = st.integers(-(10**6), 10**6)
_FRACTIONS = st.builds(Fraction, _INTEGERS, st.integers(1, 1000))


def written(draw, value):
    """One of the ways to write a number."""
    ways = [f"{value.numerator}/{value.denominator}", rf"\frac{{{value.numerator}}}{{{value.denominator}}}"]
    ways.append(f"$ {'-' if value < 0 else ''}\\dfrac{{{abs(value.numerator)}}}{{{value.denominator}}} $.")
    if value.denominator == 1:
        ways += [str(value), f"{value.numerator:,}", f"{value}.0", f"{value.numerator * 3}/3"]
    return draw(st.sampled_from(ways))


@settings(deadline=None)
@given(st.data(), _FRACTIONS, _FRACTIONS)
def test_numbers_are_equal_just_when_their_values_are(data, x, y):
    assert compare(written(data.draw, x), written(data.draw, x)) is EQUAL
    expected = EQUAL if x == y else DIFFERENT
    assert compare(written(data.draw, x), written(data.draw, y)) is expected


@settings(deadline=None)
@given(st.data(), _FRACTIONS)
def test_a_number_never_equals_its_hundredth_nor_a_percentage(data, x):
    assume(x)
    assert compare(written(data.draw, x), written(data.draw, x / 100)) is DIFFERENT
    for other in (x, x / 100, x * 100):
        assert compare(f"{x}%", written(data.draw, other)) is UNDETERMINED


_PIECES = st.sampled_from(
    [
        *"0123456789,./-+% ()[]{}$xA^_\n√٣",
        *(r"\%", r"\,", r"\!", r"\frac", "{1}", "{2}", r"\text{a}", r"\left", r"\right"),
    ]
)
_ANSWERS = st.lists(_PIECES, max_size=12).map("".join) | st.text(max_size=12)


@settings(deadline=None)
@given(_ANSWERS, _ANSWERS)
def test_comparison_is_symmetric(a, b):
    assert compare(a, b) is compare(b, a)


@settings(deadline=None)
@given(_ANSWERS)
def test_comparison_is_reflexive_where_there_is_an_answer(a):
    assert compare(a, a) is (EQUAL if normalize(a) else UNDETERMINED)


@pytest.mark.parametrize(
    "hostile",
    [
        "9^{9^9}",
        "(x+y+z)^{200}",
        "(" * 3000 + "1" + ")" * 3000,
        "{" * 450 + "}" * 450,
        "7" * 100_000,
        "x" * 100_000,
        r"\frac{1}{" * 10_000,
        r"\text" * 199,
        "1," * 499,
        "1/" * 499,
        " 1" * 499,
    ],
)
def test_hostile_answers_are_left_undetermined(hostile):
    assert compare(hostile, "5") is UNDETERMINED
    assert compare("5", hostile) is UNDETERMINED
    assert compare(hostile, hostile + ",") is UNDETERMINED
    assert compare(hostile, hostile) is EQUAL


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


# ---- classes


def partition(answers):
    classes = AnswerClasses()
    numbers = [classes.classify(answer) for answer in answers]
    return {frozenset(i for i, n in enumerate(numbers) if n == number) for number in numbers}, classes, numbers


def test_classes_are_numbered_in_order_of_appearance():
    _, classes, numbers = partition(["1/2", "3", "0.5", "B", "3.0", r"\frac12"])
    assert numbers == [0, 1, 0, 2, 1, 0]
    assert classes.representatives == ["1/2", "3", "B"]
    assert classes.num_undetermined == 0


def test_undetermined_answers_are_classes_of_their_own_and_counted_once():
    _, classes, numbers = partition(["x+1", "5", "1+x", "1+x", "5.0"])
    assert numbers == [0, 1, 2, 2, 1]
    assert classes.num_undetermined == 2  # "5" against "x+1", and "1+x" against both


_DECIDABLE = st.sampled_from(["1/2", "0.5", r"\frac{2}{4}", "2", "2.0", "4/2", "1,000", "1000", "A", "B", r"\text{A}"])


@settings(deadline=None)
@given(st.data(), st.lists(_DECIDABLE, max_size=10))
def test_the_partition_of_decidable_answers_does_not_depend_on_their_order(data, answers):
    order = data.draw(st.permutations(range(len(answers))))
    shuffled, classes, _ = partition([answers[i] for i in order])
    assert {frozenset(order[i] for i in members) for members in shuffled} == partition(answers)[0]
    assert classes.num_undetermined == 0
