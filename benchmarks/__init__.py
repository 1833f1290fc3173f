"""Benchmarks: ratios of interleaved runs on one thread, never absolute times (see ``timing.py``)."""
