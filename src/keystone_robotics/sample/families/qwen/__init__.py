"""Policies that denoise through a Qwen2.5-VL decoder: EO1 and Wall-X, in LeRobot."""
