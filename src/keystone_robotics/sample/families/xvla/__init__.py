"""X-VLA: LeRobot's copy and the project's own code."""
