"""Patterns: algebra that region growing cannot see, and names for what it finds."""

from graphfuse.patterns.apply import Recognised, recognise, rewrite_patterns, words
from graphfuse.patterns.language import Either, Matcher, Maybe, Number, Offence, Op, Times, Var, Weight
from graphfuse.patterns.load import all_patterns
from graphfuse.patterns.pattern import Match, Miss, Pattern, Tape

__all__ = [
    "Either", "Match", "Matcher", "Maybe", "Miss", "Number", "Offence", "Op", "Pattern", "Recognised", "Tape", "Times", "Var", "Weight",
    "all_patterns", "recognise", "rewrite_patterns", "words",
]  # fmt: skip
