"""Conformance checks that any vector environment can run."""

from esper_env.testing.conformance import CHECKS, check_vector_env

__all__ = ["CHECKS", "check_vector_env"]
