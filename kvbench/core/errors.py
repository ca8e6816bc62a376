"""Errors that a user sees as one line. Exit codes belong to the exception.

KvbenchError (1)        a run failed, or a check did
  UsageError (2)        a wrong key, value, file or combination: what, where, what to try
  Interrupted (130)     Ctrl-C; a partial result was written
"""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REGRESSION = 3
EXIT_INCONCLUSIVE = 4
EXIT_NOT_COMPARABLE = 5
EXIT_INTERRUPTED = 130


class KvbenchError(Exception):
    """A run that could not be completed or a check that failed."""

    exit_code = EXIT_FAILED


class UsageError(KvbenchError):
    """Bad input. The message is one line: what is wrong, where, what to try."""

    exit_code = EXIT_USAGE


class Interrupted(KvbenchError):
    """The user stopped the run; the partial result says so."""

    exit_code = EXIT_INTERRUPTED
