"""Other ways to spend compute on a chunk, as policies: rescaled scores, a constant noise, samplers that select on the way."""

from keystone_study.methods.policy import METHODS, with_method

__all__ = ["METHODS", "with_method"]
