"""Imported once by the server that worker processes are forks of: what every worker needs. Nothing here may start a thread,
use a GPU or open a GL context, which a fork would not survive.
"""

from keystone_robotics.evaluate.executors import process  # noqa: F401
from keystone_robotics.select.engine import warm_up

warm_up()
