"""What members of a run send its orchestrator, in the words of a story: work, and what validators say of it."""

from __future__ import annotations

from typing import Any

from muster.clients.orchestrator import OrchestratorClient
from muster.protocol.hashes import content_hash
from testbed.runs.run_fixture import Orchestrator, RunFixture, some_hash

REJECTED = {"accepted": False, "reason": "wrong_reward", "position": 3, "measured": 1.0, "threshold": 0.0}


class Story:
    """A run and its orchestrator."""

    def __init__(self, run_fixture: RunFixture, orchestrator: Orchestrator) -> None:
        self.run_fixture, self.orchestrator = run_fixture, orchestrator
        self.run = run_fixture.run

    def client(self, name: str | None) -> OrchestratorClient:
        return self.run_fixture.client(self.orchestrator.url, name)

    async def work(self, worker: str, index: int, step: int = 0) -> str:
        """Upload and commit; return the file's hash."""
        data, root = content_of(worker, index)
        async with self.client(worker) as client:
            receipt = await client.put_file(data, self.run, index, root)
        await self.run_fixture.commit(worker, index, root, step)
        return receipt.file_hash

    async def called(self, worker: str, index: int) -> list[str]:
        """Return the validators in the order in which they are called to some work."""
        return await self.run_fixture.called(self.orchestrator.url, worker, index)

    async def accept(self, worker: str, index: int, **changes: Any) -> list[str]:
        """Let the first two that are called accept; return who is called."""
        called = await self.called(worker, index)
        for validator in called[:2]:
            await self.judge(validator, worker, index, **changes)
        return called

    async def judge(self, validator: str, worker: str, index: int, **changes: Any) -> None:
        """Post a verdict, an acceptance unless changed."""
        data, root = content_of(worker, index)
        verdict = self.run_fixture.verdict(validator, worker, index, root, content_hash(data), **changes)
        async with self.client(validator) as client:
            await client.post_verdict(verdict)

    async def reject(self, validator: str, worker: str, index: int, evidence: bytes) -> None:
        """Post evidence, and a rejection that names it."""
        async with self.client(validator) as client:
            name = await client.put_evidence(evidence)
            assert await client.get_evidence(name) == evidence
        await self.judge(validator, worker, index, evidence=name, **REJECTED)


def content_of(worker: str, index: int) -> tuple[bytes, str]:
    """Return the file of some work, and its root."""
    return f"{worker} {index}".encode() * 100, some_hash(f"{worker} root {index}")
