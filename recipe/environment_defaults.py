"""Defaults of settings that an environment variable may change."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Generic, TypeVar

from mint.errors import InvalidRequest

T = TypeVar("T", str, int, float)


@dataclass(frozen=True)
class EnvironmentDefault(Generic[T]):
    """A default_factory: the value of an environment variable where it is set, otherwise `default`.

    The variable is read when a config is made, as the type of `default`. InvalidRequest names it when it cannot be.
    """

    variable: str
    default: T

    def __call__(self) -> T:
        """The default as of now."""
        if not self.is_set:
            return self.default
        text = os.environ[self.variable].strip()
        kind = type(self.default)
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not text:
            wanted = {str: "a name", int: "a whole number", float: "a number"}[kind]
            raise InvalidRequest(f"{self.variable}={text!r}: must be {wanted}; set it to one, or unset it.")
        return value

    @property
    def is_set(self) -> bool:
        """Whether the variable is there."""
        return self.variable in os.environ
