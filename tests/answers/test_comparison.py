"""A notion of equality that is exact where it decides and honest where it cannot."""

from fractions import Fraction

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from scaffolding_ext.answers import Verdict, compare
from scaffolding_ext.answers.forms import normalize

EQUAL, DIFFERENT, UNDETERMINED = Verdict


def test_compare():
    cases = [
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
        ("1.5e3", "1500", EQUAL),
        ("-2.5E-3", "-0.0025", EQUAL),
        ("1e-05", "0.00001", EQUAL),
        ("3e-5", "0.00003", EQUAL),
        ("1e+2", "100", EQUAL),
        ("6.02e23", r"6.02 \times 10^{23}", EQUAL),
        ("1.5e3 meters", "1500 meters", EQUAL),
        ("(1e3, 2)", "(1000, 2)", EQUAL),
        ("1.5e3", "1.6e3", DIFFERENT),
        ("1.5x10^3", "1500", EQUAL),
        ("1.5 x 10^3", "1500", EQUAL),
        ("1.5*10^-5", "0.000015", EQUAL),
        ("1.5*10**3", "1500", EQUAL),
        ("10^-5", "0.00001", EQUAL),
        ("2e-3", "2e", UNDETERMINED),  # perhaps Euler's number less three
        ("2e", "3e", UNDETERMINED),
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
        ("6\u3002", "6", EQUAL),
        ("x+1\uff0e", "x+1", EQUAL),
        ("6\u3002", "7", DIFFERENT),
        (r"\left( 1, 2 \right)", "(1,2)", EQUAL),
        ("(1,2)", "12", DIFFERENT),
        (r"\text{Paris}", "Paris", EQUAL),
        (r"\text{yes}", "Yes", EQUAL),
        ("TRUE", "true", EQUAL),
        ("yes", "no", DIFFERENT),
        ("yes", "x", DIFFERENT),
        ("yes", "x^2", UNDETERMINED),
        ("52_8", "1,2", UNDETERMINED),
        ("a", "A", EQUAL),
        ("x", "X", DIFFERENT),
        ("x_A", "x_a", UNDETERMINED),
        ("A", "B", DIFFERENT),
        ("A", "5", DIFFERENT),
        ("New York", "NewYork", EQUAL),
        ("x+1", "1+x", UNDETERMINED),
        ("[0,1)", "[0,1]", DIFFERENT),
        ("(0,1]", "[0,1]", DIFFERENT),
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
        # mixed numbers, thousands, powers of ten
        ("3 1/2", "7/2", EQUAL),
        (r"1\frac{4}{5}", "9/5", EQUAL),
        (r"-137 \frac{1}{2}", "-137.5", EQUAL),
        (r"11,\! 111,\! 100", "11111100", EQUAL),
        ("10{,}080", "10080", EQUAL),
        (r"1.5 \times 10^{3}", "1500", EQUAL),
        (r"6.72\cdot10^{-5}", ".0000672", EQUAL),
        ("5.", "5", EQUAL),
        ("\u22125", "-5", EQUAL),
        (r"3.5 \approx 4", "3.5", EQUAL),
        # tuples and intervals keep their order and their brackets
        (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac\pi2)", UNDETERMINED),
        (r"\left( \frac12, -13 \right)", "(0.5,-13)", EQUAL),
        ("(1,2)", "(2,1)", DIFFERENT),
        ("(1,2)", "(1,2,3)", DIFFERENT),
        ("(1,2)", "[1,2]", DIFFERENT),
        ("[1/2,1)", "[0.5,1)", EQUAL),
        ("(1,2)", "1, 2", EQUAL),
        ("(1,2)", "2, 1", DIFFERENT),
        ("[1,2]", "1, 2", UNDETERMINED),
        # sets and bare lists do not
        (r"\{1, 2\}", r"\{2, 1.0\}", EQUAL),
        (r"\{1, 2\}", r"\left\{1, 2, 3\right\}", DIFFERENT),
        (r"\{1, 1, 2\}", r"\{1, 2\}", EQUAL),
        ("1, -2", "-2, 1", EQUAL),
        ("1, -2", "1, 2", DIFFERENT),
        (r"1 \text{ and } -2", "-2, 1", EQUAL),
        ("3, 5, 7", "5", DIFFERENT),
        (r"\{1, 2\}", "(1, 2)", DIFFERENT),
        # names of what is asked for
        ("x=5", "5", EQUAL),
        ("x = 5", "x=5.0", EQUAL),
        ("x=5", "6", DIFFERENT),
        ("x=5", "y=5", UNDETERMINED),
        (r"x \in [-2,7]", "[-2,7]", EQUAL),
        (r"(r,\theta) = (3, 1/2)", "(3, 0.5)", EQUAL),
        ("f(x)=5", "5", EQUAL),
        ("x_1 = 5, x_2 = -1", "-1, 5", EQUAL),
        # calculations name their result
        ("60 + 30 = 90", "90", EQUAL),
        (r"\$93 - \$15 = \$78", r"\$78", EQUAL),
        (r"60 \times 3 = 180", "180", EQUAL),
        ("1,000 + 2,000 = 3,000", "3000", EQUAL),
        ("2 + 3 = 5 = 5", "5", EQUAL),
        ("60 + 30 = 90", "60", DIFFERENT),
        ("60 + 31 = 90", "91", DIFFERENT),
        ("3*8=24", "3 * 8 = 24", EQUAL),
        ("3*8=24", "4*6=24", UNDETERMINED),
        ("1 + 2 = 3, 2 + 3 = 5", "5", DIFFERENT),
        ("x - 3 = 5", "5", UNDETERMINED),
        ("2 + 3 = x", "5", UNDETERMINED),
        # words
        (r"\textbf{9}", "9", EQUAL),
        ("**9**", "9", EQUAL),
        (r"\boxed{9}", "9", EQUAL),
        (r"\mathrm{East}", "east", EQUAL),
        (r"\text{(C)}", "C", EQUAL),
        ("(C)", "c", EQUAL),
        ("New  York", r"\text{new york}", EQUAL),
        ("Evelyn", "nylevE", DIFFERENT),
        ("abc", "cab", UNDETERMINED),
        ("Briana and Carla", "Carla and Briana", EQUAL),
        ("Briana and Carla", "Carla", DIFFERENT),
        ("No solution", "5", DIFFERENT),
        # numerals of other bases are no plain numbers
        ("52_8", "52_{8}", EQUAL),
        ("52_8", "53_8", DIFFERENT),
        ("52_8", "52", UNDETERMINED),
        ("11_2", "3", UNDETERMINED),
        # ways to write roots and matrices
        (r"11\sqrt2", r"11 \sqrt{2}", EQUAL),
        (r"\frac{\sqrt3}{2}", r"\dfrac{\sqrt{3}}2", EQUAL),
        (r"\begin{pmatrix} -1/3 \\ 2 \end{pmatrix}", r"\begin{bmatrix} -\frac13 \\ 2.0 \end{bmatrix}", EQUAL),
        (r"\begin{pmatrix} 1 & 2 \end{pmatrix}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", DIFFERENT),
    ]
    found = [(a, b, compare(a, b), compare(b, a), verdict) for a, b, verdict in cases]
    assert [each for each in found if not each[2] is each[3] is each[4]] == []


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
        *(
            r"\begin{pmatrix}",
            r"\end{pmatrix}",
            "&",
            r"\\",
            r"\cup",
            "=",
            " and ",
            "word",
            "cm",
            r"\$",
            r"\pm",
            r"\{",
            r"\}",
        ),
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


def test_hostile_answers_are_left_undetermined():
    for hostile in [
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
    ]:
        assert compare(hostile, "5") is UNDETERMINED
        assert compare("5", hostile) is UNDETERMINED
        assert compare(hostile, hostile + "y") is UNDETERMINED
        assert compare(hostile, hostile) is EQUAL


def test_units_are_implied_only_where_the_caller_says_so():
    for a, b, stated, implied in [
        ("42", r"42 \, \text{inches}", UNDETERMINED, EQUAL),
        ("42 inches", "42 Inches.", EQUAL, EQUAL),
        ("42 inches", "43 inches", DIFFERENT, DIFFERENT),
        ("5cm", r"5 \text{ cm}", EQUAL, EQUAL),
        ("5 cm", "5 km", UNDETERMINED, UNDETERMINED),
        (r"15\mbox{ cm}^2", "15", UNDETERMINED, EQUAL),
        (r"15\mbox{ cm}^2", "15 cm", UNDETERMINED, UNDETERMINED),
        (r"72^\circ", "72", UNDETERMINED, EQUAL),
        (r"72^{\circ}", r"72 \text{ degrees}", EQUAL, EQUAL),
        (r"\$78", "78", UNDETERMINED, EQUAL),
        (r"\frac{270}7\text{ degrees}", r"\frac{270}{7}", UNDETERMINED, EQUAL),
        ("It takes a total of 3 bolts", "3", UNDETERMINED, EQUAL),
        ("It takes a total of 3 bolts", "4", UNDETERMINED, DIFFERENT),
        ("50%", "50", UNDETERMINED, EQUAL),
        ("50%", "0.5", UNDETERMINED, DIFFERENT),
        (r"50\%", "5000", UNDETERMINED, DIFFERENT),
    ]:
        for left, right in ((a, b), (b, a)):
            assert compare(left, right) is stated, (left, right)
            assert compare(left, right, units_implied=True) is implied, (left, right)


@settings(deadline=None)
@given(_FRACTIONS, st.sampled_from(["%", r"\%", " cm", r"^\circ", r"\text{ m}", ""]), st.sampled_from([100, 1000]))
def test_no_unit_makes_a_number_equal_its_hundredth(x, unit, factor):
    assume(x)
    for other in (x / factor, x * factor):
        assert compare(f"{x}{unit}", str(other), units_implied=True) is DIFFERENT
