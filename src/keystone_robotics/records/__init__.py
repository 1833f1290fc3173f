"""Episodes on disk: one record class, one SQLite schema. `evaluate` writes them, `compare` and `report` read them."""

from __future__ import annotations

from keystone_robotics.records.episode import EpisodeKey, EpisodeRecord, RoundRecord
from keystone_robotics.records.store import FILE, Store, check_run

__all__ = ["FILE", "EpisodeKey", "EpisodeRecord", "RoundRecord", "Store", "check_run"]
