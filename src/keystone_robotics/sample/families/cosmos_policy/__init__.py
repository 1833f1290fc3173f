"""Cosmos Policy: a video model whose latent frames are observations, actions, the future and a value."""
