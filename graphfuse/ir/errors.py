"""What can go wrong with a program that came from outside."""

from __future__ import annotations


class GraphfuseError(Exception):
    """Base of every error that a user can cause and mend; the command line prints it in one line and exits with 2."""


class ProgramError(GraphfuseError):
    """A fused program or its text form breaks a rule; nothing was generated from it."""


class ShapeError(GraphfuseError):
    """Arrays handed to a program do not have the shapes that it declares."""


class Refused(GraphfuseError):
    """Something cannot, or should not, be fused. ``rule`` is a short kebab-case name, ``reason`` one line for people."""

    def __init__(self, rule: str, reason: str) -> None:
        super().__init__(f"{rule}: {reason}")
        self.rule = rule
        self.reason = reason
