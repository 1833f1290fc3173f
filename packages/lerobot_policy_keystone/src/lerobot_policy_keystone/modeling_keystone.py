"""The policy type ``keystone``: a wrapper that delegates to the attached policy inside."""

from typing import Any

from lerobot.policies.factory import get_policy_class
from lerobot.policies.pretrained import PreTrainedPolicy
from torch import Tensor

import keystone_robotics as keystone
from keystone_robotics.integrations import attach_with_log
from keystone_robotics.spec import options_from_environment, spec_from
from lerobot_policy_keystone.configuration_keystone import KeystoneConfig


class KeystonePolicy(PreTrainedPolicy):
    """A pretrained policy that draws K chunks per round and executes one of them."""

    config_class = KeystoneConfig
    name = "keystone"

    def __init__(self, config: KeystoneConfig, **_: Any) -> None:
        super().__init__(config)
        base = config.base
        self.inner = get_policy_class(base.type).from_pretrained(base.pretrained_path, config=base)
        keystone.detach(self.inner)  # KEYSTONE_K in the environment has attached it already
        attach_with_log(self.inner, spec_from(config.given(), options_from_environment()))

    def reset(self) -> None:
        self.inner.reset()

    def select_action(self, batch: dict[str, Tensor], **kwargs: Any) -> Tensor:
        return self.inner.select_action(batch, **kwargs)

    def predict_action_chunk(self, batch: dict[str, Tensor], **kwargs: Any) -> Tensor:
        return self.inner.predict_action_chunk(batch, **kwargs)

    def forward(self, batch: dict[str, Tensor]) -> tuple[Tensor, dict[str, Any] | None]:
        return self.inner.forward(batch)

    def get_optim_params(self) -> dict[str, Any]:
        return self.inner.get_optim_params()

    def supports_rtc(self) -> bool:
        return self.inner.supports_rtc()

    def init_rtc_processor(self) -> None:
        self.inner.config.rtc_config = self.config.rtc_config
        self.inner.init_rtc_processor()
