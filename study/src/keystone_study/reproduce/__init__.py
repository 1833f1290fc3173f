"""The paper's experiments on the policies of the study: ``keystone reproduce``."""

from keystone_study.reproduce.experiment import EXPERIMENTS, Experiment
from keystone_study.reproduce.run import reproduce, reproduce_main
from keystone_study.reproduce.workloads import MAIN_WORKLOADS

__all__ = ["EXPERIMENTS", "MAIN_WORKLOADS", "Experiment", "reproduce", "reproduce_main"]
