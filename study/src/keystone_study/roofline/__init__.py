"""What K should cost, on paper: weights, keys and values, arithmetic and launches against a device's public numbers.

Everything here is a model, not a measurement. `keystone profile` measures.
"""

from keystone_study.roofline.devices import DEVICES, Device
from keystone_study.roofline.models import MODELS, Model
from keystone_study.roofline.predict import Way, largest_k, round_time

__all__ = ["DEVICES", "MODELS", "Device", "Model", "Way", "largest_k", "round_time"]
