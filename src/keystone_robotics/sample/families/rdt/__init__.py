"""RDT-1B and H-RDT: diffusion transformers whose blocks attend to images and language."""
