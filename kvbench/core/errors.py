"""Errors that a user sees as one line, and exit codes, which belong to the exception or the verdict."""

from __future__ import annotations

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REGRESSION = 3
EXIT_INCONCLUSIVE = 4
EXIT_NOT_COMPARABLE = 5
EXIT_INTERRUPTED = 130

EXIT_CODES = {
    EXIT_OK: "done; a check, a comparison or a gate passed",
    EXIT_FAILED: "an error, or a check failed (verify, kernels --check, doctor, a gate without a measurement)",
    EXIT_USAGE: "usage: a wrong key, value, file or combination; the message says what to try",
    EXIT_REGRESSION: "gate: a regression",
    EXIT_INCONCLUSIVE: "gate: inconclusive",
    EXIT_NOT_COMPARABLE: "gate: not comparable (other workload, schema, model, device or machine)",
    EXIT_INTERRUPTED: "interrupted (Ctrl-C); what was done so far is written and says so",
}
"""All of them; `kvbench --help` shows this table."""


class KvbenchError(Exception):
    """A run that could not be completed or a check that failed."""

    exit_code = EXIT_FAILED


class UsageError(KvbenchError):
    """Bad input. The message is one line: what is wrong, where, what to try."""

    exit_code = EXIT_USAGE


class Interrupted(KvbenchError):
    """The user stopped the run; the partial result says so."""

    exit_code = EXIT_INTERRUPTED
