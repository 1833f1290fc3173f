"""Policies together with what lies between them and an environment: ready to plan for a batch of episodes."""

from __future__ import annotations

from keystone.policies.agent import Agent
from keystone.policies.load import SHIPPED, load_agent, shipped_policies

__all__ = ["SHIPPED", "Agent", "load_agent", "shipped_policies"]
