"""Every Python example in the README and the guides runs as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import keystone_robotics as keystone
from benchmarks import readme
from keystone_robotics.monitor import Calibration
from keystone_robotics.sample.families import ADAPTERS

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/start.md", "docs/select.md", "docs/adapters.md", "docs/profile.md", "docs/monitor.md"]


class Head(torch.nn.Module):
    """The sampler of the home-grown policy that the examples are tried on."""

    def sample(self, context, noise=None):
        noise = torch.randn(len(context), 16, 7) if noise is None else noise
        return context[:, None] + 0.1 * noise


class MyPolicy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = Head()

    def encode(self, batch):
        return batch["state"]

    def sample_actions(self, batch):
        return self.head.sample(self.encode(batch))

    def select_action(self, batch):
        return self.sample_actions(batch)[:, 0]

    def reset(self):
        pass


class SteppedPolicy(torch.nn.Module):
    """One whose number of denoising steps can be changed, for examples with ``steps=``."""

    num_inference_steps = 10

    def encode(self, batch):
        return batch["state"]

    def sample(self, context, noise):
        return context[:, None] + noise / self.num_inference_steps

    def select_action(self, batch):
        return self.sample(self.encode(batch), torch.randn(1, 16, 7))[:, 0]


def examples():
    for page in PAGES:
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
        assert blocks, f"{page} has no example"
        for number, block in enumerate(blocks):
            yield pytest.param(block, id=f"{page}-{number}")


@pytest.fixture
def adapters():
    """Examples may register an adapter; the registry is put back afterwards."""
    before = dict(ADAPTERS)
    yield ADAPTERS
    ADAPTERS.clear()
    ADAPTERS.update(before)


def attach_to_home_grown(policy, *args, **kwargs):
    """The examples call attach on "your policy"; ours has no built-in adapter, so the site is named where they do not."""
    if not any(adapter.owns(policy) for adapter in ADAPTERS.values()):
        kwargs.setdefault("site", "sample_actions")
    keystone.detach(policy)
    return keystone.attach(policy, *args, **kwargs)


def profile_home_grown(policy, *args, **kwargs):
    return keystone.profile(policy, *args, site="sample_actions", **kwargs)


class Keystone:
    """The `keystone` module as the examples see it."""

    def __getattr__(self, name):
        own = {"attach": attach_to_home_grown, "profile": profile_home_grown}
        return own[name] if name in own else getattr(keystone, name)


@pytest.mark.parametrize("source", list(examples()))
def test_example_runs(source, adapters, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("KEYSTONE_PROFILES", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    calibration = Calibration("dispersion", "high", "constant", (0.5,), 3, 0.05, 19)
    calibration.save(Path("alarm.json"))
    policy, batch = SteppedPolicy() if "steps=2" in source else MyPolicy(), {"state": torch.zeros(1, 7)}
    names = {
        "keystone": Keystone(),
        "torch": torch,
        "policy": policy,
        "batch": batch,
        "observation": batch,
        "handle": attach_to_home_grown(MyPolicy()),
        "alarm": keystone.Alarm(calibration),
        "candidates": np.random.default_rng(0).normal(size=(16, 50, 7)),
    }
    source = re.sub(r"^import .*keystone_robotics as keystone$", "", source, flags=re.MULTILINE)
    exec(compile(source, "example", "exec"), names)
    if "ADAPTERS[" in source:
        handle = keystone.attach(policy, k=4, seed=0)
        policy.select_action(batch)
        assert handle.adapter == "my-policy"
        assert handle.last.labels.shape == (1, 4)


@pytest.mark.parametrize("page", readme.PAGES)
def test_tables_are_made_from_the_results(page):
    assert readme.filled(page) == (ROOT / page).read_text()
