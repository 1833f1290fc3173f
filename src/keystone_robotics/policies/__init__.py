"""Policies with their pre- and post-processing, ready to plan for a batch of episodes."""

from __future__ import annotations

from keystone_robotics.policies.agent import Agent
from keystone_robotics.policies.load import load_agent, shipped_policies
from keystone_robotics.policies.provider import PolicyProvider

__all__ = ["Agent", "PolicyProvider", "load_agent", "shipped_policies"]
