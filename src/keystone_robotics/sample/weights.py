"""Identifies the weights of an attached policy in memory."""

from __future__ import annotations

import hashlib

import torch

from keystone_robotics.sample.engine import Engine

#: Parameters, and numbers of each, that are read.
PARAMETERS, NUMBERS = 64, 16


def weights_fingerprint(engine: Engine) -> str:
    """A hash of an attached policy in memory: names and shapes of its parameters, and some of their values, in bfloat16, so
    that the precision it was loaded with does not matter. Empty for a policy that is not of torch.
    """
    modules = [module for module, _ in engine.adapter.overrides(engine.owner) if isinstance(module, torch.nn.Module)]
    named = [(name, weight) for module in modules for name, weight in module.named_parameters()]
    if not named:
        return ""
    digest = hashlib.sha256(repr([(name, tuple(weight.shape)) for name, weight in named]).encode())
    for name, weight in named[:: -(-len(named) // PARAMETERS)]:
        flat = weight.detach().flatten()
        some = flat[:: max(1, -(-len(flat) // NUMBERS))].to(torch.bfloat16).float().cpu()
        digest.update(name.encode() + some.numpy().tobytes())
    return digest.hexdigest()[:16]
