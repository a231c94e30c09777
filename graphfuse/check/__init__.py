"""Inputs, comparisons with Polygraphy, verdicts per output and per region."""
