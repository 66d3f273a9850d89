"""Values of Python's built-in types as JSON and back: the only thing that leaves a sandbox.

None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset and dict, nested. What is read back has exactly
these types, whatever the program returned: an object whose __eq__ says yes to everything arrives as what it holds, or
not at all. Instances of subclasses (Counter, namedtuple, IntEnum, ...) arrive as their built-in type.

Floats travel as hex and large ints too, so nothing is rounded and no decimal conversion is needed.
"""

from __future__ import annotations

from typing import Any

# Deeper nesting is refused on both sides, well before the interpreter's own limit.
_MAX_DEPTH = 100
# JSON numbers beyond this are read as hex.
_SMALL_INT = 1 << 62
_SEQUENCES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}


class NotPlainError(ValueError):
    """A value that is none of the built-in types, or nested too deep; or JSON that no plain value has."""


def to_json(value: Any, depth: int = 0) -> Any:
    """The value as something that json.dumps takes. Raises NotPlainError."""
    if depth > _MAX_DEPTH:
        raise NotPlainError(f"nested deeper than {_MAX_DEPTH} levels")
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        number = int.__index__(value)
        return number if -_SMALL_INT < number < _SMALL_INT else {"int": int.__format__(number, "x")}
    if isinstance(value, float):
        return {"float": float.hex(value)}
    if isinstance(value, complex):
        number = complex.__complex__(value)
        return {"complex": [float.hex(number.real), float.hex(number.imag)]}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bytes | bytearray):
        return {"bytes": bytes(value).hex()}
    if isinstance(value, list):
        return [to_json(item, depth + 1) for item in list.__iter__(value)]
    if isinstance(value, dict):
        return {"dict": [[to_json(k, depth + 1), to_json(v, depth + 1)] for k, v in dict.items(value)]}
    for name, kind in _SEQUENCES.items():
        if isinstance(value, kind):
            return {name: [to_json(item, depth + 1) for item in kind.__iter__(value)]}
    raise NotPlainError(f"a {type(value).__name__} is no plain value")


def from_json(data: Any, depth: int = 0) -> Any:
    """The value that `to_json` wrote, from what json.loads gives. Raises NotPlainError for anything else."""
    if depth > _MAX_DEPTH:
        raise NotPlainError(f"nested deeper than {_MAX_DEPTH} levels")
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, list):
        return [from_json(item, depth + 1) for item in data]
    if not isinstance(data, dict) or len(data) != 1:
        raise NotPlainError(f"a {type(data).__name__} in the JSON of a value")
    ((name, content),) = data.items()
    try:
        return _from_tagged(name, content, depth)
    except (TypeError, ValueError, OverflowError) as error:
        raise NotPlainError(f"{name}: {error}") from error


def _from_tagged(name: str, content: Any, depth: int) -> Any:
    if name == "int":
        return int(content, 16)
    if name == "float":
        return float.fromhex(content)
    if name == "complex":
        real, imaginary = content
        return complex(float.fromhex(real), float.fromhex(imaginary))
    if name == "bytes":
        return bytes.fromhex(content)
    if name == "dict":
        return {from_json(key, depth + 1): from_json(value, depth + 1) for key, value in content}
    if name in _SEQUENCES and isinstance(content, list):
        return _SEQUENCES[name](from_json(item, depth + 1) for item in content)
    raise NotPlainError(f"{name!r} names no plain type")
