"""Symbolic equality of two expressions, for a process that can be killed: nothing here bounds its run time.

math-verify's parser and comparison run without their time-outs, which need the main thread's SIGALRM.
"""

from __future__ import annotations

import contextlib
import logging
import re
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify

from scaffolding_ext.answers.comparison import Verdict, compare
from scaffolding_ext.answers.forms import form_of, normalize

_DIGITS = 50  # two numbers are equal if they agree to this many digits
_LARGEST = sympy.Integer(10) ** 30  # equality is certain up to this size; beyond it the integer part exceeds the digits
_DECIMAL = re.compile(r"(?<![\d._])(\d*)\.(\d+)(?![\d.])")
# Expressions with unknowns are tried here first: values of the first unknown, and steps to each further one.
_POINTS = ((sympy.Rational(1237, 2311), sympy.S.One), (sympy.Rational(2903, 1009), sympy.Rational(541, 227)))


def job(units_implied: bool, answer: str, other: str | None = None) -> str | None:
    """Pool entry point: read one answer and return None, or compare two and return the verdict's value."""
    if other is not None:
        return compare(answer, other, units_implied=units_implied, oracle=symbolic).value
    for latex in form_of(normalize(answer)).leaves():
        with contextlib.suppress(Exception):  # the comparison is then undetermined
            expression = parse(latex)
            if isinstance(expression, sympy.Expr):
                _scalars(expression, sympy.S.One)
    return None


def symbolic(left: str, right: str) -> Verdict:
    """Compare two LaTeX expressions; UNDETERMINED if one cannot be read or the two directions disagree.

    Numbers are compared to 50 digits. Other scalars are different if they differ at a positive point, and undetermined
    if only at a negative one, as a root of a square from its base; otherwise math-verify decides, in both directions.
    """
    try:
        a, b = parse(left), parse(right)
        if isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr):
            verdict = _scalars(a, b)
            if verdict is not None:
                return verdict
        there, back = (verify(x, y, timeout_seconds=None, raise_on_error=True) for x, y in ((a, b), (b, a)))
        if there == back:
            return Verdict.EQUAL if there else Verdict.DIFFERENT
        return Verdict.UNDETERMINED
    except Exception:  # the algebra system cannot handle it
        return Verdict.UNDETERMINED


@lru_cache(maxsize=1024)
def parse(latex: str) -> Any:
    """Parse an expression with sympy; `i` is the imaginary unit.

    Raises:
        Exception: The expression cannot be read; the type is the parser's.
    """
    exact = _DECIMAL.sub(lambda found: f"(\\frac{{{int(found[1] + found[2])}}}{{{10 ** len(found[2])}}})", latex)
    # The default lower-cases symbols, which would merge x and X.
    expression = latex2sympy(exact, conversion_config=ConversionConfig(lowercase_symbols=False))
    return expression.subs(sympy.Symbol("i"), sympy.I) if isinstance(expression, sympy.Basic) else expression


def _scalars(a: sympy.Expr, b: sympy.Expr) -> Verdict | None:
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    if not symbols:
        verdict, scale = _at({}, a, b)
        return verdict if verdict is not Verdict.EQUAL or scale < _LARGEST else None
    found = [
        _at({symbol: sign * (first + number * step) for number, symbol in enumerate(symbols)}, a, b)[0]
        for sign in (1, -1)
        for first, step in _POINTS
    ]
    if Verdict.DIFFERENT in found[: len(_POINTS)]:
        return Verdict.DIFFERENT
    return Verdict.UNDETERMINED if Verdict.DIFFERENT in found else None


def _at(values: dict[sympy.Symbol, sympy.Expr], a: sympy.Expr, b: sympy.Expr) -> tuple[Verdict | None, sympy.Expr]:
    """Compare two values, and return the larger size; None if they have none."""
    left, right = (sympy.N(side.subs(values), _DIGITS) for side in (a, b))
    difference = sympy.Abs(left - right)
    scale = sympy.Max(sympy.Abs(left), sympy.Abs(right))
    if not (difference.is_Float or difference.is_zero) or not (scale.is_Float or scale.is_zero):
        return None, scale
    return Verdict.DIFFERENT if difference > scale * sympy.Float(10) ** (5 - _DIGITS) else Verdict.EQUAL, scale


logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns on every call that its time-outs are off
symbolic(r"\frac{x+1}{2}", r"\sqrt{x}")  # builds the parser's tables before any deadline runs
