"""A policy whose chunks say whose they are, for servers whose replicas are other processes."""

from serving import STATE, PointAgent

import keystone_robotics as keystone


class EchoingAgent(PointAgent):
    """The first number of an action is that of the robot's state."""

    def plan(self, histories, tasks):
        chunks = super().plan(histories, tasks)
        chunks[..., 0] = [[float(history[-1][STATE][0])] for history in histories]
        return chunks


@keystone.factory
def agent():
    return EchoingAgent()
