"""Logs of a server: text for people, or one JSON object a line for machines."""

from __future__ import annotations

import json
import logging
import sys


class JsonLines(logging.Formatter):
    """``{"time": …, "level": …, "logger": …, "message": …}`` and the fields that a record brings.

    >>> record = logging.LogRecord("keystone", logging.INFO, "", 0, "refused", None, None)
    >>> record.fields, record.created = {"reason": "full"}, 0.0
    >>> JsonLines().format(record)
    '{"time": 0.0, "level": "INFO", "logger": "keystone", "message": "refused", "reason": "full"}'
    """

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": round(record.created, 6),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """The same for people."""

    def format(self, record: logging.LogRecord) -> str:
        found = {name: str(value) for name, value in getattr(record, "fields", {}).items()}
        # A client's text must not look like a line of its own.
        fields = " ".join(f"{name}={text if text.isprintable() else ascii(text)}" for name, text in found.items())
        return f"{super().format(record)} {fields}".rstrip()


def log_to_stderr(style: str) -> None:
    """Send the process's logs to stderr, as "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        JsonLines() if style == "json" else TextLines("%(asctime)s %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    for noisy in ("keystone.serve.websocket", "websockets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
