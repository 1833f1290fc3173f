"""OpenVLA-OFT with its diffusion head."""
