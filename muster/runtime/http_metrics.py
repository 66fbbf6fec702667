"""Count and time the requests that a server answers, for Prometheus."""

from __future__ import annotations

import time
from functools import cache
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from muster.runtime import telemetry

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
REQUESTS: Final = telemetry.counter("http_requests", "Requests answered", ("method", "route", "status"))
SECONDS: Final = telemetry.histogram("http_request_seconds", "Time to answer", _BUCKETS, ("method", "route"))
_requests, _seconds = cache(REQUESTS.labels), cache(SECONDS.labels)  # finding a series costs more than counting


class Measured:
    """ASGI middleware that counts and times requests by route, never by path: addresses are no labels."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 500
        started = time.perf_counter()

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            route = scope.get("route")
            method = scope["method"] if scope["method"] in ("GET", "PUT", "POST", "HEAD") else "other"
            measure(method, getattr(route, "path", "none"), status, started)


def measure(method: str, route: str, status: int, started: float) -> None:
    """Count an answer to a request that came at `started`, by `time.perf_counter`."""
    _requests(method, route, status).inc()
    _seconds(method, route).observe(time.perf_counter() - started)
