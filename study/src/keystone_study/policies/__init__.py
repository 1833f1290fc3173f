"""The compact flow-matching policy, and the trained policies of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keystone_robotics.policies.agent import Agent
from keystone_robotics.policies.provider import PolicyProvider

TYPE = "keystone-flow"  #: in config.json, where LeRobot's checkpoints have the type of their policy
SHIPPED = Path(__file__).parent / "shipped"


class StudyPolicies(PolicyProvider):
    """The entry point ``keystone_robotics.policies`` of this distribution. The names are known without torch."""

    type = TYPE

    def shipped(self) -> Mapping[str, Path]:
        return {folder.name: folder for folder in sorted(SHIPPED.glob("*")) if (folder / "config.json").is_file()}

    def load(self, folder: Path, device: str | None) -> Any:
        from keystone_study.policies.flow import load_flow

        return load_flow(folder).to(device or "cpu")

    def make_agent(self, policy: Any, tasks: Sequence[str]) -> Agent:
        from keystone_study.policies.flow_agent import FlowAgent

        return FlowAgent(policy, tasks)

    def sample_observation(self, policy: Any, batch: int) -> Any:
        import torch

        generator = torch.Generator().manual_seed(0)
        observation = torch.randn(batch, policy.config.inputs, generator=generator)
        return observation.to(policy.action_mean.device)


PROVIDER = StudyPolicies()
