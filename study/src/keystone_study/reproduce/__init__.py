"""The paper's experiments on the policies of the study: ``keystone reproduce``."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from keystone_study.reproduce.adaptive_run import ADAPTIVE_WORKLOADS, reproduce_adaptive
from keystone_study.reproduce.alarms_run import ALARM_WORKLOADS, reproduce_alarms
from keystone_study.reproduce.experiment import EXPERIMENTS
from keystone_study.reproduce.forecast import reproduce_forecast
from keystone_study.reproduce.run import reproduce, reproduce_main
from keystone_study.reproduce.search_run import REPORTED, reproduce_search
from keystone_study.reproduce.selectors_run import SELECTOR_WORKLOADS, reproduce_selectors
from keystone_study.reproduce.spaces import SPACE_WORKLOADS, reproduce_spaces
from keystone_study.reproduce.workloads import MAIN_WORKLOADS

#: Experiments that end in tables: their workloads, and the function that rolls out what is missing and writes the page.
TABLES: dict[str, tuple[tuple[str, ...], Callable[..., Path]]] = {
    "main": (MAIN_WORKLOADS, reproduce_main),
    "search": (REPORTED, reproduce_search),
    "alarms": (ALARM_WORKLOADS, reproduce_alarms),
    "forecast": (MAIN_WORKLOADS, reproduce_forecast),
    "adaptive": (ADAPTIVE_WORKLOADS, reproduce_adaptive),
    "selectors": (SELECTOR_WORKLOADS, reproduce_selectors),
    "spaces": (SPACE_WORKLOADS, reproduce_spaces),
    **{name: (one.workloads, partial(reproduce, one)) for name, one in EXPERIMENTS.items()},
}

__all__ = ["TABLES"]
