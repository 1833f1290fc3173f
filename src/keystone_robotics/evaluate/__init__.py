"""Closed-loop evaluation: arms, episodes, seeds, a store that survives, and executors. Needs the extra ``eval``."""
