"""Symbolic equality of two expressions, for a process that can be killed: nothing here bounds its own time.

math-verify's parser and comparison are used without their time-outs, which need the main thread's SIGALRM.
"""

from __future__ import annotations

import contextlib
import logging
from functools import lru_cache
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify import verify

from scaffolding_ext.answers.comparison import Verdict, compare
from scaffolding_ext.answers.forms import leaves, read

_DIGITS = 50  # two numbers are equal where they agree to this many,
_LARGEST = sympy.Integer(10) ** 30  # up to this size; of larger ones an integer part is beyond them
_POINTS = (sympy.Rational(1237, 2311), sympy.Rational(-2903, 1009))  # where expressions with unknowns are tried first


def job(units_implied: bool, answer: str, other: str | None = None) -> str | None:
    """What a pool is asked: to look at one answer, which returns nothing; or the verdict on two, as its value."""
    if other is not None:
        return compare(answer, other, units_implied=units_implied, oracle=symbolic).value
    look = read(answer)
    for latex in () if look is None else leaves(look.form):
        with contextlib.suppress(Exception):  # of any type: then comparing will be undetermined
            expression = parse(latex)
            if isinstance(expression, sympy.Expr):
                _scalars(expression, sympy.S.One)
    return None


def symbolic(left: str, right: str) -> Verdict:
    """Whether two expressions in LaTeX are equal; UNDETERMINED where one cannot be read or the two directions differ.

    Numbers are compared to 50 digits. Other scalars are different where they differ at a point; equality is
    math-verify's, asked in both directions.
    """
    try:
        a, b = parse(left), parse(right)
        if isinstance(a, sympy.Expr) and isinstance(b, sympy.Expr):
            verdict = _scalars(a, b)
            if verdict is not Verdict.UNDETERMINED:
                return verdict
        return _both_ways(a, b)
    except Exception:  # of any type: what the algebra system cannot do, it leaves undetermined
        return Verdict.UNDETERMINED


@lru_cache(maxsize=1024)
def parse(latex: str) -> Any:
    """The expression as sympy reads it; `i` is the imaginary unit.

    Raises:
        Exception: It cannot be read; of a type of the parser's own.
    """
    # With lower-case symbols, the default, x and X would be one.
    expression = latex2sympy(latex, conversion_config=ConversionConfig(lowercase_symbols=False))
    return expression.subs(sympy.Symbol("i"), sympy.I) if isinstance(expression, sympy.Basic) else expression


def _scalars(a: sympy.Expr, b: sympy.Expr) -> Verdict:
    symbols = sorted(a.free_symbols | b.free_symbols, key=str)
    for point in _POINTS if symbols else _POINTS[:1]:
        values = {symbol: point + number for number, symbol in enumerate(symbols)}
        left, right = (sympy.N(side.subs(values), _DIGITS) for side in (a, b))
        difference = sympy.Abs(left - right)
        scale = sympy.Max(sympy.Abs(left), sympy.Abs(right))
        if not (difference.is_Float or difference.is_zero) or not (scale.is_Float or scale.is_zero):
            return Verdict.UNDETERMINED
        if difference > scale * sympy.Float(10) ** (5 - _DIGITS):
            return Verdict.DIFFERENT
    return Verdict.EQUAL if not symbols and scale < _LARGEST else Verdict.UNDETERMINED


def _both_ways(a: Any, b: Any) -> Verdict:
    there, back = (verify(x, y, timeout_seconds=None, raise_on_error=True) for x, y in ((a, b), (b, a)))
    if there != back:
        return Verdict.UNDETERMINED
    return Verdict.EQUAL if there else Verdict.DIFFERENT


logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns of each call that its time-outs are off
symbolic(r"\frac{x+1}{2}", r"\sqrt{x}")  # the parser builds its tables when first used: before any deadline runs
