"""Predict the cost of K from weights, caches, arithmetic and launches, and a device's public numbers.

This is a model, not a measurement. `keystone profile` measures.
"""

from keystone_study.roofline.devices import DEVICES, Device
from keystone_study.roofline.models import MODELS, Model
from keystone_study.roofline.predict import ExecutionMode, largest_k, round_time

__all__ = ["DEVICES", "MODELS", "Device", "ExecutionMode", "Model", "largest_k", "round_time"]
