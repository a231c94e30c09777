"""Random graphs of small ops, and the proof that fusing them changes no number: ``python -m tests.fuzz --help``."""
