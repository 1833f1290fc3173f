"""For policies without an adapter: vectorise a named method over its randomness."""

from __future__ import annotations

import functools
from typing import Any

import torch

from keystone_robotics.errors import KeystoneError, nearest_name
from keystone_robotics.sample.adapter import Adapter, Window
from keystone_robotics.sample.override import SamplerOverride
from keystone_robotics.sample.request import SampleRequest


class SiteAdapter(Adapter):
    """Adapter for ``site="method"`` or ``site="inner.module.method"``."""

    name = "site"
    shared_context = "everything that does not depend on the noise (torch.vmap)"

    def __init__(self, policy: Any, site: str) -> None:
        *path, self.method = site.split(".")
        self.path = path
        owner = self.module(policy)
        if not callable(getattr(owner, self.method, None)):
            known = [
                name
                for name in dir(owner)
                if name == "forward"
                or (not name.startswith("_") and not hasattr(torch.nn.Module, name) and callable(getattr(owner, name)))
            ]
            raise KeystoneError(
                f"site={site!r}: {type(owner).__name__} has no such method; {nearest_name(self.method, known)}"
            )
        if isinstance(getattr(owner, self.method), torch.nn.Module):
            raise KeystoneError(
                f"site={site!r} is a module, not a method: name one of its methods, for example {site + '.forward'!r}"
            )
        self.override = _override_method(self.method)  # type: ignore[misc]

    def owns(self, policy: Any) -> bool:
        return True

    def module(self, policy: Any) -> Any:
        for name in self.path:
            if not hasattr(policy, name):
                known = [key for key in {**vars(policy), **vars(policy).get("_modules", {})} if not key.startswith("_")]
                raise KeystoneError(
                    f"site: {type(policy).__name__} has no attribute {name!r}; {nearest_name(name, known)}"
                )
            policy = getattr(policy, name)
        return policy

    def refuse_steps(self, policy: Any, steps: int) -> str:
        return "with site= KeyStone does not know where the policy has its number of denoising steps; set it there"

    def window(self, config: Any) -> Window | None:
        try:
            return super().window(config)
        except (AttributeError, TypeError, KeyError):
            return None  # unknown policy: all dimensions and steps count, as in the paper


@functools.cache
def _override_method(method: str) -> type[SamplerOverride]:
    """A class that overrides one method by name."""

    def sample(self: Any, *args: Any, **kwargs: Any) -> Any:
        original = getattr(super(override, self), method)
        return self._keystone.run(SampleRequest(single=functools.partial(original, *args, **kwargs)))

    sample.__name__ = method
    override = type("SiteOverride", (SamplerOverride,), {method: sample})
    return override
