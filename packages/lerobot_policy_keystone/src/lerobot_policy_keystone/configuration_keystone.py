"""``--policy.type=keystone --policy.base_path=CHECKPOINT --policy.k=16``: a separate policy type, public API only."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lerobot.configs import NormalizationMode, PreTrainedConfig

from lerobot_policy_keystone.options import KeystoneOptions


@PreTrainedConfig.register_subclass("keystone")
@dataclass
class KeystoneConfig(KeystoneOptions, PreTrainedConfig):
    """A checkpoint of any supported policy type with KeyStone attached. All other settings come from the checkpoint."""

    base_path: str | None = None  # the checkpoint: a directory or a repository on the Hugging Face Hub
    n_action_steps: int | None = None  # executed steps per chunk; default: the checkpoint's
    rename_map: dict[str, str] = field(default_factory=dict)  # observation keys of the environment -> of the checkpoint
    normalization_mapping: dict[str, NormalizationMode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._base: PreTrainedConfig | None = None
        if self.base_path:
            self.input_features = self.base.input_features
            self.output_features = self.base.output_features

    @property
    def base(self) -> PreTrainedConfig:
        """The checkpoint's own config, on this config's device."""
        if not self.base_path:
            raise ValueError("--policy.type=keystone needs --policy.base_path=CHECKPOINT")
        if self._base is None:
            overrides = [f"--device={self.device}"]
            if self.n_action_steps is not None:
                overrides.append(f"--n_action_steps={self.n_action_steps}")
            self._base = PreTrainedConfig.from_pretrained(self.base_path, cli_overrides=overrides)
            self._base.pretrained_path = Path(self.base_path)
        return self._base

    @property
    def observation_delta_indices(self) -> list[int] | None:
        return self.base.observation_delta_indices

    @property
    def action_delta_indices(self) -> list[int] | None:
        return self.base.action_delta_indices

    @property
    def reward_delta_indices(self) -> list[int] | None:
        return self.base.reward_delta_indices

    def get_optimizer_preset(self) -> Any:
        return self.base.get_optimizer_preset()

    def get_scheduler_preset(self) -> Any:
        return self.base.get_scheduler_preset()

    def validate_features(self) -> None:
        self.base.validate_features()
