"""openpi's π0 and π0.5 in JAX: ``jax.vmap`` over the noise of the policy's own jitted sampler."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from keystone_robotics.sample.families.pi.openpi_policy import OpenPiFamily, is_policy
from keystone_robotics.sample.kit.jax_arrays import coarsest_type_of, memory_error_as_torch, to_torch
from keystone_robotics.sample.override import Hook, SamplerOverride
from keystone_robotics.sample.request import NoiseSpec, SampleRequest


def _sample(
    policy: Any, own: Callable[..., Any], rng: Any, observation: Any, *, noise: Any = None, **options: Any
) -> Any:
    """A round on ``own(rng, observation, noise=..., num_steps=...)``; JAX arrays in and out."""
    engine = policy._keystone
    if engine.steps is not None:
        options["num_steps"] = engine.steps
    if noise is not None:  # the caller's own noise: nothing to select from
        return own(rng, observation, noise=noise, **options)
    if engine.untouched:
        return engine.run_single(partial(own, rng, observation, **options), to_torch)
    jax = sys.modules["jax"]
    batch, shape = observation.state.shape[0], (policy._model.action_horizon, policy._model.action_dim)

    def with_noise(noise: Any) -> Any:
        return own(rng, observation, noise=noise, **options)

    def single() -> Any:
        # The noise is drawn through torch, where the self-check can replace it.
        return with_noise(jax.numpy.asarray(torch.randn(batch, *shape).numpy()))

    def draw(noise: Tensor, k: int) -> Tensor:
        # vmap of a jitted function is compiled once per K and cached. It batches only what depends on the noise, so the
        # context is encoded once.
        wide = noise.reshape(batch, k, *shape).transpose(0, 1)
        with memory_error_as_torch():
            candidates = to_torch(jax.vmap(with_noise)(jax.numpy.asarray(wide.numpy())))
        return candidates.transpose(0, 1).flatten(0, 1)

    return engine.run(
        SampleRequest(
            single=single,
            chunk=to_torch,
            restore=lambda chunk: jax.numpy.asarray(chunk.numpy()),
            wide=draw,
            noise=NoiseSpec(batch=batch, shape=shape, device="cpu"),
            precision=lambda: coarsest_type_of(with_noise, jax.numpy.zeros((batch, *shape))),
        )
    )


def _weights(model: Any) -> list[list[Any]]:
    """Shape and dtype of every array of a model: a flax module, or an object with arrays as attributes."""
    nnx = sys.modules.get("flax.nnx")
    tree = nnx.state(model) if nnx is not None and isinstance(model, nnx.Module) else vars(model)
    return [
        [list(leaf.shape), str(leaf.dtype)] for leaf in sys.modules["jax"].tree.leaves(tree) if hasattr(leaf, "dtype")
    ]


def _device() -> Any:
    """JAX's default device."""
    return sys.modules["jax"].devices()[0]


class OpenPiJaxOverride(SamplerOverride):
    """On the `Policy`, which holds the jitted sampler."""

    _sample_actions = Hook(_sample)


class OpenPiJaxAdapter(OpenPiFamily):
    """π0 and π0.5 in openpi's JAX code."""

    name = "openpi-jax"
    shared_context = (
        "everything that does not depend on the noise (jax.vmap); keys and values of the prefix are copied K times"
    )
    override = OpenPiJaxOverride
    pytorch = False

    def owns_model(self, model: Any) -> bool:
        return (
            "jax" in sys.modules
            and not isinstance(model, torch.nn.Module)
            and all(hasattr(model, name) for name in ("sample_actions", "compute_loss", "action_horizon", "action_dim"))
        )

    def module(self, policy: Any) -> Any:
        return policy

    def overrides(self, policy: Any) -> Sequence[tuple[Any, type[SamplerOverride]]]:
        return [(policy, OpenPiJaxOverride)]

    def cost(self, policy: Any) -> Any:
        """Also the weights and the device, which are JAX's."""
        return [*super().cost(policy), _weights(policy._model), _device().device_kind]

    def device(self, policy: Any) -> str:
        """JAX's default device; empty for the CPU, which torch describes."""
        device = _device()
        return "" if device.platform == "cpu" else f"{device.device_kind} ({device.platform}, JAX)"

    def refuse(self, policy: Any) -> str:
        if not is_policy(policy):
            return (
                "this is a JAX model, whose sampler runs inside jax.jit, where nothing can be selected on the host; attach to "
                "the openpi Policy that holds it"
            )
        if "noise" not in inspect.signature(policy._sample_actions).parameters:
            return (
                f"the sampler of a {type(policy._model).__name__} takes no noise (π0-FAST decodes tokens one by one): there "
                "is no noise to draw K times"
            )
        return ""
