"""HTTP clients. The certificates that they trust are read once: that takes 20 ms, more than most exchanges do.

A command makes several clients, a supervisor one for every look at whether a process is ready.
"""

from __future__ import annotations

import functools
import ssl
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2

from muster.settings.schema import is_loopback

CONNECT_SECONDS: Final = 5.0


@functools.cache
def tls_context(*, trust_env: bool) -> ssl.SSLContext:
    """Return the TLS settings for `httpx2.AsyncClient(verify=…)` that it would make for itself."""
    return httpx2.create_ssl_context(trust_env=trust_env)


def http_client(url: str, timeout: float, **options: Any) -> httpx2.AsyncClient:
    """Return a client of the server at a URL. What the environment says of proxies is not for this machine itself."""
    trust_env = not is_loopback(urlsplit(url).hostname or "")
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)),
        trust_env=trust_env,
        verify=tls_context(trust_env=trust_env),
        **options,
    )
