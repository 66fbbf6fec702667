"""Structured log lines and Prometheus metrics of a process.

Every process calls `configure` once, first thing. A log call names an event and gives values:

    log = telemetry.logger("worker")
    log.info("committed", step=3, index=7)

It becomes one JSON line in the process's log file (for machines, and for `muster swarm`), and one short line on
stderr (for people). stdout is never written to. Third parties' loggers are kept to warnings, and their lines name them
(`logger`).

Metrics share the prefix `muster_`, use base units (seconds, bytes), and never carry an address as a label.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import WatchedFileHandler
from pathlib import Path
from typing import Final, TextIO

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from stamina.instrumentation import set_on_retry_hooks
from structlog.typing import EventDict, FilteringBoundLogger, Processor

from muster.errors import MusterError
from muster.runtime import retries

disable_created_metrics()  # a third of the text under /metrics, which no rule or panel uses
REGISTRY: Final = CollectorRegistry()
"""Metrics of this process; an HTTP service shows them under /metrics with `prometheus_client.generate_latest`."""

OURS: Final = ("muster", "orchestrator", "worker", "validator", "trainer", "adversary")
"""Loggers that write from debug upwards; all others write from warning upwards."""

HARMLESS: Final = {
    "vllm.model_executor.model_loader.reload.layerwise": (
        "RotaryEmbedding: Failed to load weights",
        "ParallelLMHead: Failed to load weights",
    )
}
"""Harmless warnings of libraries, by their logger: vLLM logs these at each update of its weights, for layers without
weights in a checkpoint."""

_QUIET_ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "VLLM_CONFIGURE_LOGGING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
}
"""Defaults for libraries that read the environment when imported; a value the user set is kept."""

WEIGHTS_ARRIVED: Final = "weights arrived"
ENGINE_STARTED: Final = "engine started"
GENERATED: Final = "generated"
COMMITTED: Final = "committed"
"""Events by which `benchmarks/page.py` times a worker's start."""

REQUEST_ID_HEADER: Final = "X-Request-Id"
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9-]{1,64}")

_SHARED: Final[list[Processor]] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
]


def configure(process: str, *, log_file: Path | None = None, level: str = "info", stream: TextIO | None = None) -> None:
    """Set up logging for this process; calling it again replaces the earlier set-up.

    process: short name that every line carries, e.g. "worker-2".
    log_file: gets JSON lines, appended; parent folders are made. None writes no file.
    level: lowest level shown on stderr; the file gets debug and above.
    stream: where the human lines go instead of stderr.
    """
    for name, value in _QUIET_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # 1. Python's loggers.
    handlers = [_console(stream or sys.stderr, level)]
    if log_file is not None:
        handlers.append(_json_file(log_file))
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.DEBUG)
    for name in HARMLESS:
        logging.getLogger(name).addFilter(_quieten)
    # 2. Ours, which end in them.
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_SHARED,
            structlog.processors.StackInfoRenderer(),
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    set_on_retry_hooks([retries.log_retry])
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(process=process)


def _quieten(record: logging.LogRecord) -> bool:
    """Make a harmless warning of a library a line for debugging."""
    if record.getMessage() in HARMLESS.get(record.name, ()):
        record.levelno, record.levelname = logging.DEBUG, "DEBUG"
    return True


def logger(room: str) -> FilteringBoundLogger:
    """Return the logger of one room, e.g. `logger("validator")`. Fast enough to call at import."""
    return structlog.get_logger(f"muster.{room}")


def request_id(given: str = "") -> str:
    """Return the id that a request came with, or a new one where that is none."""
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def name_request(request_id: str) -> None:
    """Put a request's id on every log line of the running task from now on, and of the tasks that it starts."""
    structlog.contextvars.bind_contextvars(request_id=request_id)


@contextmanager
def about_request(request_id: str) -> Iterator[None]:
    """Put a request's id on every log line until left, and on an error of ours that leaves it."""
    with structlog.contextvars.bound_contextvars(request_id=request_id):
        try:
            yield
        except MusterError as error:
            error.request_id = request_id
            raise


def _console(stream: TextIO, level: str) -> logging.Handler:
    handler = logging.StreamHandler(stream)
    handler.setLevel(level.upper())
    handler.setFormatter(_formatter(short_line))
    return handler


def _json_file(path: Path) -> logging.Handler:
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = WatchedFileHandler(path, encoding="utf-8")  # goes on in a new file where the old one was renamed
    handler.setLevel(logging.DEBUG)
    handler.setFormatter(_formatter(structlog.processors.JSONRenderer(default=_as_json)))
    return handler


def _formatter(renderer: Processor) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_SHARED, structlog.stdlib.add_logger_name, structlog.processors.format_exc_info],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )


def short_line(_logger: object, _method: str, event: EventDict) -> str:
    """Format one line for a person: time of day, process, event, the values in the order they were given."""
    time = str(event.pop("time", ""))[11:19]
    process = event.pop("process", "")
    level = event.pop("level", "info")
    exception = event.pop("exception", "")
    words = [time, str(process), "" if level in ("info", "debug") else f"{level}:", str(event.pop("event", ""))]
    words += [f"{key}={_short(value)}" for key, value in event.items()]
    line = " ".join(word for word in words if word)
    return f"{line}\n{exception}" if exception and os.environ.get("MUSTER_DEBUG") else line


def _as_json(value: object) -> str:
    """Return hashes as 0x-hex, everything else as its text."""
    return "0x" + value.hex() if isinstance(value, bytes) else str(value)


def _short(value: object) -> str:
    """Shorten floats to four digits, hashes and addresses to their first bytes."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, bytes):
        value = "0x" + value.hex()
    text = str(value)
    return text[:10] + "…" if text.startswith("0x") and len(text) >= 42 else text


def counter(name: str, help_text: str, labels: tuple[str, ...] = ()) -> Counter:
    """Return a counter `muster_<name>_total`."""
    return Counter(f"muster_{name}", help_text, labels, registry=REGISTRY)


def gauge(name: str, help_text: str, labels: tuple[str, ...] = ()) -> Gauge:
    """Return a gauge `muster_<name>`."""
    return Gauge(f"muster_{name}", help_text, labels, registry=REGISTRY)


def histogram(name: str, help_text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
    """Return a histogram `muster_<name>` with the given upper bounds."""
    return Histogram(f"muster_{name}", help_text, labels, buckets=buckets, registry=REGISTRY)
