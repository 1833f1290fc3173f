"""π0 and π0.5: LeRobot's, openpi's in PyTorch and in JAX."""
