"""GR00T and the heads built like its own: LeRobot's, Isaac-GR00T's, StarVLA's."""
