"""The paper's experiments on the policies that come with the package: ``keystone reproduce``."""

from keystone.reproduce.experiment import EXPERIMENTS, Experiment
from keystone.reproduce.run import reproduce

__all__ = ["EXPERIMENTS", "Experiment", "reproduce"]
