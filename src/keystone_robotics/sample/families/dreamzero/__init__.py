"""DreamZero: a world model that denoises a video and the actions together, block after block."""
