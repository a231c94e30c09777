"""ONNX's own node cases, each rewritten and run by our code: ``python -m tests.conformance --help``."""
