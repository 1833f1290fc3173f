"""Prometheus metrics of a server. Without prometheus-client nothing is counted, and ``/metrics`` says so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keystone_robotics.serve.scheduler import Batch

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
POWERS = (1, 2, 4, 8, 16, 32, 64)


class _Nothing:
    """Stands in for every metric where there is no library."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self


class Metrics:
    """One set of metrics, in a registry of its own."""

    def __init__(self) -> None:
        try:
            import prometheus_client as library
        except ImportError:
            self._render: Any = None
            nothing: Any = _Nothing()
            self.connections = self.refused = self.requests = self.degraded = self.late = self.alarms = nothing
            self.k = self.batch = self.queue_seconds = self.model_seconds = nothing
            return
        registry = library.CollectorRegistry()
        self._render = lambda: library.generate_latest(registry)

        def counter(name: str, about: str, *labels: str) -> Any:
            return library.Counter(f"keystone_{name}", about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: Sequence[float]) -> Any:
            return library.Histogram(f"keystone_{name}", about, buckets=buckets, registry=registry)

        self.connections = library.Gauge("keystone_connections", "Clients that are connected", registry=registry)
        self.requests = counter("requests", "Requests that were answered with a chunk")
        self.refused = counter("refused", "Requests that were refused, a message of several robots as one", "reason")
        self.degraded = counter("degraded", "Replies with a smaller K or fewer steps than asked for")
        self.late = counter("late", "Replies after their deadline")
        self.alarms = counter("alarms", "Replies in whose episode the alarm has rung")
        self.k = histogram("k", "Candidates of a reply", POWERS)
        self.batch = histogram("batch", "Robots in a round", POWERS)
        self.queue_seconds = histogram("queue_seconds", "From the arrival of a request to its round", SECONDS)
        self.model_seconds = histogram("model_seconds", "Of a round", SECONDS)

    def on_batch(self, batch: Batch, seconds: float, reports: Sequence[dict[str, Any]]) -> None:
        """Count the replies of a batch."""
        self.batch.observe(len(batch.waiting))
        self.model_seconds.observe(seconds)
        for report in reports:
            self.requests.inc()
            self.k.observe(report["k"])
            self.queue_seconds.observe(report["queue_ms"] / 1000)
            self.degraded.inc(report["degraded"])
            self.late.inc(report["late"])
            self.alarms.inc(bool(report.get("alarm")))

    def render(self) -> bytes | None:
        """In Prometheus' text format; None without the library."""
        return None if self._render is None else self._render()
