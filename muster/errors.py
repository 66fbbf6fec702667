"""The exception tree of the protocol library.

MusterError
├── ConfigError            the user's settings cannot work; exit code 78
├── UsageError             the command line cannot work; exit code 2
├── UnreachableError       a service or the chain did not answer in time; exit code 5
├── ChainError             the chain refused; exit code 4
│   ├── WrongChainError    the endpoint serves another chain than the settings name
│   ├── RevertError        a call or transaction reverted; carries the decoded custom error
│   └── UnfundedError      the sender cannot pay for gas
├── CheckError             something from elsewhere is not what it must be; exit code 3
│   ├── MalformedError     bytes that do not parse, are too large, or break the schema
│   ├── MismatchError      a hash, root or signature does not match
│   └── RefusedError       a service answered with a problem document
│       └── NotFoundError  it does not have what was asked for
├── StorageError           a file could not be kept or found; exit code 5
│   └── StorageConfigError the storage that the settings name cannot serve; exit code 78
└── FinishedError          nothing is left to do, and nothing is wrong; exit code 0

Every error carries `hint`: the next thing to do, in words a person can type.
"""

from __future__ import annotations

from typing import Final

EXIT_CODES: Final = (
    "Exit codes: 0 done, 1 unexpected, 2 usage, 3 a check failed, 4 the chain rejected it, 5 unreachable, "
    "78 bad configuration, 130 interrupted."
)
"""Of every command and process, for --help."""


class MusterError(Exception):
    """Base of all errors of ours. `exit_code` is what the command line ends with."""

    exit_code = 1
    request_id = ""
    """Of the request to an orchestrator that failed: its log names it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def text(self) -> str:
        """Return the message, and the request that it is about."""
        return f"{self} (request {self.request_id})" if self.request_id else str(self)


class ConfigError(MusterError):
    exit_code = 78


class UsageError(MusterError):
    exit_code = 2


class UnreachableError(MusterError):
    exit_code = 5


class ChainError(MusterError):
    exit_code = 4


class WrongChainError(ChainError):
    pass


class RevertError(ChainError):
    """A call reverted. `name` and `values` are those of the custom error, e.g. ("WindowOpen", {...})."""

    def __init__(self, message: str, *, name: str, values: dict[str, object], hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.name = name
        self.values = values


class UnfundedError(ChainError):
    pass


class CheckError(MusterError):
    exit_code = 3


class MalformedError(CheckError):
    pass


class MismatchError(CheckError):
    pass


class RefusedError(CheckError):
    """A service refused. `status` is the HTTP status, `title` that of the problem document."""

    def __init__(self, message: str, *, status: int, title: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.title = title


class NotFoundError(RefusedError):
    pass


class StorageError(MusterError):
    exit_code = 5


class StorageConfigError(StorageError):
    exit_code = 78


class FinishedError(MusterError):
    """A process has nothing left to do, for good: its run was closed, its node retired. No failure."""

    exit_code = 0


TRANSIENT: Final = (UnreachableError, ChainError, CheckError)
"""What others, or time, may mend: silence, a refusal, an answer that is not what it must be. A worker or validator says
so in its log and tries again."""
