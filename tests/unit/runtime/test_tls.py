"""What HTTP clients trust: what httpx2 would, read once."""

from __future__ import annotations

import ssl

import httpx2
import pytest

from muster.clients.orchestrator import OrchestratorClient
from muster.runtime.tls import tls_context


@pytest.mark.parametrize("trust_env", [True, False])
def test_it_verifies_what_a_client_of_its_own_would(trust_env: bool) -> None:
    ours, theirs = tls_context(trust_env=trust_env), httpx2.create_ssl_context(trust_env=trust_env)
    assert (ours.verify_mode, ours.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (ours.verify_flags, ours.options, ours.minimum_version) == (
        theirs.verify_flags,
        theirs.options,
        theirs.minimum_version,
    )
    assert ours.cert_store_stats() == theirs.cert_store_stats()


async def test_clients_read_the_certificates_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tls_context.cache_clear()
    made: list[bool] = []
    real = httpx2.create_ssl_context

    def counted(*, trust_env: bool) -> ssl.SSLContext:
        made.append(trust_env)
        return real(trust_env=trust_env)

    monkeypatch.setattr(httpx2, "create_ssl_context", counted)
    for url in ("http://127.0.0.1:1", "https://run.example.org") * 2:
        async with OrchestratorClient(url, chain_id=1, registry="0x" + "00" * 20):
            pass
    assert sorted(made) == [False, True], "whether the environment's settings count is for the host to say"
