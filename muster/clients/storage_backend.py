"""The object stores behind `muster.clients.storage`: opening one, how long it may take, and what its errors mean.

An S3 store is set up by the environment, with the names that AWS's tools use; docs/use/own-a-run.md lists them.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, from_url

from muster.errors import ConfigError, StorageConfigError, StorageError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

T = TypeVar("T")

ANSWER_SECONDS: Final = 10.0
"""Longest wait for a store to answer one operation, and for the next chunk of a file that is read."""

WRITE_BYTES_PER_SECOND: Final = 1 << 20
"""A write may take a second longer for each so many bytes."""

_CONNECT: Final = "5s"
_WHOLE_REQUEST: Final = "1h"
"""obstore's own limit also counts the body, which is as slow as its reader. `answer` bounds every wait instead."""

_RETRIES: Final = 3
_CLIENT_SETTINGS: Final = (
    "allow_http",
    "allow_invalid_certificates",
    "http1_only",
    "http2_only",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "user_agent",
)
"""What obstore would take from AWS_… in the environment if no options of ours replaced it."""

CREATED: Final = (AlreadyExistsError, FileExistsError)
"""Errors for a file that was to be created and exists; servers send them with any status 409."""

_FULL: Final = ("os error 28", "os error 122", "os error 27", "StorageFull", "QuotaExceeded", "FileTooLarge")
OTHER_STORE: Final = (
    'use another store, such as AWS S3, MinIO or Ceph, or a folder: orchestrator.storage_url = "file:FOLDER"'
)
_ANSWERED: Final = re.compile(r"performing (\w+) .* status code: (\d{3})")
_OPERATIONS: Final = {"POST": "deletion in bulk (DeleteObjects)", "PUT": "conditional puts (If-None-Match: *)"}
"""By the method: what not every store has."""
_UNKNOWN: Final = ("405", "501", "NotImplemented", "MethodNotAllowed")
_CODE: Final = re.compile(r"<Code>\s*(\w{1,64})\s*</Code>")
_WRONG_KEY: Final = ("SignatureDoesNotMatch", "InvalidAccessKeyId", "InvalidToken", "ExpiredToken")
_VARIABLES: Final = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


class UnsupportedError(StorageConfigError):
    """The store answers that it does not have an operation."""


def open_backend(url: str) -> tuple[ObjectStore, Path | None]:
    """Return the store at `url`, and its folder if it is one (made when missing).

    Raises ConfigError when the url is neither file:FOLDER nor s3://BUCKET/PREFIX, StorageError when the folder cannot
    be made.
    """
    parts = urlsplit(url)
    if parts.scheme == "s3" and parts.netloc:
        return _open_s3(url), None
    if parts.scheme != "file" or not (path := url.removeprefix("file:").removeprefix("//")):
        raise ConfigError(f"storage url {url!r} is neither file:FOLDER nor s3://BUCKET/PREFIX")
    folder = Path(path).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        other = isinstance(error, FileExistsError | NotADirectoryError)
        hint = "set orchestrator.storage_url to a folder: this is something else" if other else f"mkdir -p {path}"
        raise StorageError(f"storage folder {folder}: {error.strerror}", hint=hint) from error
    return LocalStore(folder), folder


def _open_s3(url: str) -> ObjectStore:
    retries = {
        "max_retries": _RETRIES,
        "retry_timeout": timedelta(seconds=ANSWER_SECONDS),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=1), "base": 2},
    }
    try:
        return from_url(url, client_options=client_options(os.environ), retry_config=retries)  # type: ignore[arg-type]
    except (BaseError, ValueError) as error:
        raise StorageConfigError(
            f"storage url {url!r}: {_first_line(error)}", hint="check the AWS_… variables: docs/use/own-a-run.md"
        ) from error


def client_options(environment: Mapping[str, str]) -> ClientConfig:
    """Return the options of the HTTP client: ours, and those that the environment sets.

    An http:// endpoint is used without encryption, unless AWS_ALLOW_HTTP says false.
    """
    options: dict[str, str] = {"timeout": _WHOLE_REQUEST, "connect_timeout": _CONNECT}
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")  # the first that is set is the one used
    endpoint = next((environment[name] for name in names if environment.get(name)), "")
    if endpoint.lower().startswith("http://"):
        options["allow_http"] = "true"
    for name in _CLIENT_SETTINGS:
        if value := environment.get(f"AWS_{name.upper()}"):
            options[name] = value
    return options  # type: ignore[return-value]


async def create(store: ObjectStore, key: str, data: bytes | Path) -> None:
    """Write a file that must not exist yet. Raises one of CREATED, and obstore's errors."""
    try:
        await obstore.put_async(store, key, data, mode="create")
    except CREATED as error:
        if _code(error) != "ConditionalRequestConflict":  # two requests met, and perhaps neither was done
            raise
        await obstore.put_async(store, key, data, mode="create")


def write_seconds(size: int) -> float:
    """Return how long keeping `size` bytes may take."""
    return ANSWER_SECONDS + size / WRITE_BYTES_PER_SECOND


async def answer(
    work: Awaitable[T],
    what: str,
    url: str,
    *,
    seconds: float = ANSWER_SECONDS,
    may_lack: bool = False,
    may_exist: bool = False,
) -> T:
    """Wait for one operation on the store at `url`.

    `what` says what failed, such as "cannot list". Raises StorageError. With `may_exist` AlreadyExistsError and
    FileExistsError pass, and with `may_lack` FileNotFoundError: they are answers.
    """
    try:
        async with asyncio.timeout(seconds):
            return await work
    except (BaseError, OSError) as error:
        if may_exist and isinstance(error, CREATED):
            raise
        if may_lack and isinstance(error, FileNotFoundError) and _code(error) != "NoSuchBucket":
            raise
        raise explain(error, what, url, seconds) from error


def explain(error: Exception, what: str, url: str, seconds: float = ANSWER_SECONDS) -> StorageError:
    """Return our error for a store's `error`. `seconds`: the time-out, where that is what it is."""
    text = str(error)
    late = isinstance(error, TimeoutError)
    if any(word in text for word in _FULL):
        return StorageError(f"{what}: no space left in {url}", hint="free space there, then try again")
    s3 = url.startswith("s3:")
    if s3 and not _has_credentials(os.environ) and (late or "169.254.169.254" in text):
        reason = "no credentials are set, and this machine's metadata service gives none"
        return StorageConfigError(f"{what} in {url}: {reason}", hint=f"set {_VARIABLES}")
    if late:
        return StorageError(f"{what}: {url} did not answer in {seconds:g} s", hint="is the storage up and reachable?")
    if not s3:
        return StorageError(f"{what} in {url}: {_first_line(error)}", hint="check the storage url and its rights")
    return _explain_s3(error, what, url)


def _explain_s3(error: Exception, what: str, url: str) -> StorageError:
    code, bucket, text = _code(error), urlsplit(url).netloc, str(error)
    method, status = found.groups() if (found := _ANSWERED.search(text)) else ("", "")
    if code == "NoSuchBucket":
        hint = f"create it, or check orchestrator.storage_url, AWS_ENDPOINT_URL and AWS_REGION: aws s3 mb s3://{bucket}"
        return StorageConfigError(f"{what}: there is no bucket {bucket} at this endpoint", hint=hint)
    if code == "RequestTimeTooSkewed":
        reason, hint = "this machine's clock and the storage's differ too much", "set this machine's clock (NTP)"
    elif code in _WRONG_KEY or isinstance(error, UnauthenticatedError):
        reason = f"the storage does not accept these credentials ({code or 'not authenticated'})"
        hint = f"check {_VARIABLES}, and AWS_SESSION_TOKEN where one is needed"
    elif isinstance(error, PermissionDeniedError) or code == "AccessDenied":
        reason = f"the storage refuses this key ({code or 'permission denied'})"
        hint = f"check {_VARIABLES}; the key needs to get, put, list and delete in this bucket"
    elif "builder error" in text:
        reason, hint = "the endpoint cannot be used", "check AWS_ENDPOINT_URL and AWS_ALLOW_HTTP"
    elif code in _UNKNOWN or status in _UNKNOWN or (method == "POST" and status.startswith("4")):
        operation = _OPERATIONS.get(method, method)
        return UnsupportedError(f"{what}: {url} has no {operation}: it answers {code or status}", hint=OTHER_STORE)
    else:
        reason = f"{code} {_first_line(error)}".lstrip()
        refused = status.startswith("4") and "the storage is up: look its code up in its manual"
        return StorageError(f"{what} in {url}: {reason}", hint=refused or "check AWS_ENDPOINT_URL; is the storage up?")
    return StorageConfigError(f"{what} in {url}: {reason}", hint=hint)


def _has_credentials(environment: Mapping[str, str]) -> bool:
    names = (
        "AWS_ACCESS_KEY_ID",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_SKIP_SIGNATURE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
    )
    return any(environment.get(name) for name in names)


def _code(error: Exception) -> str:
    """Return S3's own code of an error, "" when there is none."""
    found = _CODE.search(str(error))
    return found.group(1) if found else ""


def _first_line(error: Exception) -> str:
    """Return the first line of an error, without the document that a server sent: at most 300 characters."""
    lines = str(error).splitlines() or [type(error).__name__]
    return lines[0].partition("<")[0].rstrip(": ")[:300]
