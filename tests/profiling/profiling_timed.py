"""A clock that a test turns by hand, and a policy whose rounds take a known time on it."""

import threading
from collections import defaultdict
from types import SimpleNamespace

import torch


class HandClock:
    """Shows the milliseconds that it was turned to. Every thread has a hand of its own, as if each had a core of its own."""

    def __init__(self):
        self._hands = defaultdict(int)

    @property
    def now(self):
        return self._hands[threading.get_ident()]

    def turn(self, milliseconds):
        self._hands[threading.get_ident()] += milliseconds


class Timed(torch.nn.Module):
    """A policy whose encoder takes 5 ms; its sampler takes 10, and 2 more for every row beyond ``free``."""

    def __init__(self, clock, free=8, fits=10**6, encode_ms=5):
        super().__init__()
        self.clock, self.free, self.fits, self.encode_ms = clock, free, fits, encode_ms
        self.bias = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
        self.config = SimpleNamespace(n_action_steps=4)
        self.sampled = []

    def forward(self, observation):
        return self.sample(self.encode(observation), torch.randn(len(observation), 8, 2))

    def encode(self, observation):
        self.clock.turn(self.encode_ms)
        return observation + self.bias

    def sample(self, context, noise):
        rows = len(noise)
        if rows > self.fits:
            raise torch.cuda.OutOfMemoryError(f"{rows} rows")
        self.sampled.append(rows)
        self.clock.turn(10 + 2 * max(0, rows - self.free))
        return context[:, None] + noise
