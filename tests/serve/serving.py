"""A small policy behind the real server, in a thread of this process."""

import contextlib
import threading

import numpy as np
import torch

from keystone_robotics.serve.metrics import Metrics
from keystone_robotics.serve.model import Model
from keystone_robotics.serve.policy import ServedAgent
from keystone_robotics.serve.replica import Replica
from keystone_robotics.serve.scheduler import Limits
from keystone_robotics.serve.server import running
from keystone_robotics.serve.service import Guard, Service
from keystone_robotics.spec import Spec
from keystone_study.policies.flow import FlowConfig, FlowPolicy
from keystone_study.policies.flow_agent import FlowAgent

STATE = "environment_state"


def flow_policy():
    torch.manual_seed(0)
    return FlowPolicy(
        FlowConfig(observation_dim=3, action_dim=2, horizon=6, n_action_steps=4, width=16, blocks=1)
    ).eval()


class PointAgent(FlowAgent):
    """A policy of three numbers. It fails where the first is above 100, and waits where a test holds it."""

    def __init__(self, policy=None):
        super().__init__(policy or flow_policy())
        self.go = threading.Event()
        self.go.set()
        self.begun = threading.Event()
        self.batches = []

    def plan(self, histories, tasks):
        self.begun.set()
        self.go.wait(30)
        self.batches.append([float(history[-1][STATE][0]) for history in histories])
        if any(history[-1][STATE][0] > 100 for history in histories):
            raise ValueError("the arm is out of reach")
        return super().plan(histories, tasks)


def make_model(spec="core-mean:k=8", limits=None, agent=None, warm=True, **more):
    agent = agent or PointAgent()
    model = Model(Replica(ServedAgent("point", agent), Spec.parse(spec)), limits or Limits(max_batch=4), **more)
    if warm:
        model.warm_up()
        agent.batches.clear()
        agent.begun.clear()
    return model


@contextlib.contextmanager
def serving(*protocols, guard=None, model=None, **more):
    """The service, and the ports of its protocols."""
    model = model or make_model()
    metrics = Metrics()
    model._on_batch = metrics.on_batch
    service = Service(model, guard or Guard(), metrics)
    with running(service, dict.fromkeys(protocols or ("openpi",), 0), **more) as ports:
        yield service, ports


def state(*numbers):
    return np.array([*numbers, 0.0, 0.0, 0.0][:3], np.float32)
