"""CogACT, InternVLA-M1 and Dexbotic: a diffusion transformer on few tokens of a vision-language model."""
