"""MolmoAct2."""
