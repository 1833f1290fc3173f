"""Fast-WAM: LeRobot's copy and the project's own code."""
