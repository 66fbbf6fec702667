"""The certificates that this process's HTTP clients trust, read once: that takes 20 ms, more than most exchanges do.

A command makes several clients, a supervisor one for every look at whether a process is ready.
"""

from __future__ import annotations

import functools
import ssl

import httpx2


@functools.cache
def tls_context(*, trust_env: bool) -> ssl.SSLContext:
    """Return the TLS settings for `httpx2.AsyncClient(verify=…)` that it would make for itself."""
    return httpx2.create_ssl_context(trust_env=trust_env)
