"""An S3 server that an orchestrator keeps its files on, as its environment names it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import httpx2

SECRET = "a secret for rclone"


@dataclass(frozen=True)
class Endpoint:
    """An S3 server, and a bucket in it."""

    url: str
    bucket: str = "bucket"
    key: str = "a-key"
    secret: str = SECRET

    @property
    def storage_url(self) -> str:
        return f"s3://{self.bucket}/a/prefix"

    @property
    def environment(self) -> dict[str, str]:
        """Return what an operator sets to use it; nothing else of AWS's may be set beside it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }

    def new_bucket(self) -> Endpoint:
        """Make an empty bucket on the same server; moto lets anybody make one."""
        bucket = f"bucket-{secrets.token_hex(8)}"
        httpx2.put(f"{self.url}/{bucket}", timeout=30).raise_for_status()
        return Endpoint(self.url, bucket, self.key, self.secret)


def without_aws(environment: dict[str, str]) -> dict[str, str]:
    """Return an environment in which nothing about S3 is set."""
    return {name: value for name, value in environment.items() if not name.startswith("AWS_")}
