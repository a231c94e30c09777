"""Hypothesis in this tier: a busy machine is no fault of a test."""

from hypothesis import HealthCheck, settings

settings.register_profile("graphfuse", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("graphfuse")
