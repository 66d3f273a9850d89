"""The value of an arithmetic expression that a model wrote: exact, and bounded in time and size.

The expression is parsed, never evaluated by Python: numbers, + - * / // % **, signs and parentheses are all there is.
Values are fractions, so 0.1 + 0.2 is 0.3 and 1 / 3 * 3 is 1.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable
from fractions import Fraction

from mint.errors import InvalidRequest

MAX_CHARACTERS = 200
# Of numerator and denominator, of every value on the way: a million digits of 9**9**9 are never computed.
MAX_BITS = 256
_DIGITS_SHOWN = 10

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def evaluate(expression: str) -> Fraction:
    """The value of the expression.

    Raises:
        InvalidRequest: in words for whoever wrote the expression; nothing else is raised, whatever the text.
    """
    if len(expression) > MAX_CHARACTERS:
        raise InvalidRequest(f"the expression has {len(expression)} characters; at most {MAX_CHARACTERS} are allowed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # Python's advice on the text is for nobody here
            tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidRequest(f"{expression!r} is not an arithmetic expression; write one like (2 + 3) * 4") from None
    return _value(tree.body, expression)


def format_value(value: Fraction) -> str:
    """As digits: exact where the decimals end soon, otherwise rounded to 10 of them."""
    if value.denominator == 1:
        return str(value.numerator)
    scaled = round(value * 10**_DIGITS_SHOWN)
    sign, digits = "-" * (scaled < 0), str(abs(scaled)).rjust(_DIGITS_SHOWN + 1, "0")
    return f"{sign}{digits[:-_DIGITS_SHOWN]}.{digits[-_DIGITS_SHOWN:]}".rstrip("0").rstrip(".")


def _value(node: ast.expr, expression: str) -> Fraction:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        # The text and not the float, which is not exact.
        return _bounded(_literal(ast.get_source_segment(expression.strip(), node)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub):
        value = _value(node.operand, expression)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, expression), _value(node.right, expression)
        if isinstance(node.op, ast.Pow):
            return _power(left, right)
        if type(node.op) in _BINARY:
            if isinstance(node.op, ast.Div | ast.FloorDiv | ast.Mod) and right == 0:
                raise InvalidRequest("division by zero")
            return _bounded(Fraction(_BINARY[type(node.op)](left, right)))
    raise InvalidRequest(
        f"{expression!r} holds more than arithmetic; use numbers, + - * / // % ** and parentheses only"
    )


def _literal(text: str | None) -> Fraction:
    assert text is not None, "a parsed number has a place in its text"
    mantissa, _, exponent = text.lower().partition("e")
    if mantissa.startswith("0") and mantissa[1:2] in ("x", "o", "b"):
        return Fraction(int(text, 0))
    if exponent and abs(int(exponent)) > MAX_BITS:
        raise InvalidRequest(f"the number {text} is too large or too small")
    return Fraction(text.replace("_", ""))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise InvalidRequest("powers must be whole numbers")
    power = exponent.numerator
    if base == 0 and power < 0:
        raise InvalidRequest("division by zero")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    # A base of b bits is at least 2**(b - 1), so the power has at least this many.
    if (bits - 1) * abs(power) > MAX_BITS:
        raise InvalidRequest(f"the result has more than {MAX_BITS} bits")
    if bits <= 1:  # 0, 1 and -1, whose powers stay small however large the exponent
        return base ** (abs(power) % 2 or 2 * (power != 0))
    return _bounded(base**power)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise InvalidRequest(f"a value has more than {MAX_BITS} bits")
    return value
