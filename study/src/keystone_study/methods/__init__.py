"""Other ways to spend compute on a chunk, as policies: rescaled scores, a constant noise, samplers that select on the way,
ensembles over time.
"""

from keystone_study.methods.ensembles import ENSEMBLES
from keystone_study.methods.policy import METHODS, with_method

__all__ = ["ENSEMBLES", "METHODS", "with_method"]
