"""Learned selectors for flow policies, as baselines: a scorer maps a context and candidates to scores; the highest wins."""
