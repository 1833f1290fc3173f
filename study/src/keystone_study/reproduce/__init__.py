"""The paper's experiments on the policies of the study: ``keystone reproduce``."""

from keystone_study.reproduce.experiment import EXPERIMENTS, Experiment
from keystone_study.reproduce.run import reproduce

__all__ = ["EXPERIMENTS", "Experiment", "reproduce"]
