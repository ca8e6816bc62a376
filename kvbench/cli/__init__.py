"""The command line: parse, call, exit code. Data goes to stdout; progress, warnings and errors to stderr.

Commands import the rooms below when they are called, so `kvbench --help` loads neither NumPy nor Numba.
Every error is one line, and its exit code belongs to the exception.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import sys
from collections.abc import Sequence

import click

from .. import __version__
from ..core.errors import EXIT_CODES, EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, KvbenchError
from ..core.printable import printable
from .advise import advise_command
from .calibrate import calibrate_command
from .capacity import capacity_command
from .compare import ab_command, compare_command
from .completion import completion_command
from .device import device_command
from .experts import experts_command
from .gate import gate_command
from .kernels import kernels_command
from .machine import doctor_command, env_command
from .options import give_verbose
from .plot import plot_command
from .policy import policy_command
from .record import record_command
from .report import report_command
from .run import run_command
from .show import config_command, list_command
from .sweep import sweep_command
from .trace import trace_command
from .validate import validate_command
from .verify import verify_command
from .warm import warm_command

_OF_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What writing to a full disk, or to what was closed, gives. Files that kvbench writes have a line of their own."""

NO_COLOR = bool(os.environ.get("NO_COLOR"))


@click.group(
    invoke_without_command=True,
    epilog="\b\nExit codes:\n" + "\n".join(f"{code:>5}  {text}" for code, text in EXIT_CODES.items()),
    context_settings={"help_option_names": ["-h", "--help"], "color": False if NO_COLOR else None},
)
@click.version_option(__version__, prog_name="kvbench", message="%(prog)s %(version)s")
@click.pass_context
def app(context: click.Context) -> int | None:
    """What will this KV-cache design do to this workload's latency tail?

    kvbench leads a workload through the scheduler and cache rules of SGLang and vLLM, on a modelled device or, with a
    small model, on this machine.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    return EXIT_OK


app.add_command(run_command, "run")
app.add_command(list_command, "list")
app.add_command(config_command, "config")
app.add_command(trace_command, "trace")
app.add_command(record_command, "record")
app.add_command(kernels_command, "kernels")
app.add_command(verify_command, "verify")
app.add_command(compare_command, "compare")
app.add_command(ab_command, "ab")
app.add_command(gate_command, "gate")
app.add_command(capacity_command, "capacity")
app.add_command(sweep_command, "sweep")
app.add_command(advise_command, "advise")
app.add_command(policy_command, "policy")
app.add_command(experts_command, "experts")
app.add_command(env_command, "env")
app.add_command(doctor_command, "doctor")
app.add_command(device_command, "device")
app.add_command(warm_command, "warm")
app.add_command(completion_command, "completion")
app.add_command(validate_command, "validate")
app.add_command(calibrate_command, "calibrate")
app.add_command(report_command, "report")
app.add_command(plot_command, "plot")
give_verbose(app)


def main() -> None:
    """The console script. It looks for garbage seldom: a tenth of the time of imports, and next to nothing is found."""
    gc.set_threshold(50_000, 20, 50)
    sys.exit(call(sys.argv[1:]))


def call(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; nothing but SystemExit of Python itself gets through."""
    try:
        if sys.stdout is None:
            raise KvbenchError("the output is closed; send it to a file or to /dev/null")
        code = app.main(args=list(arguments), prog_name="kvbench", standalone_mode=False)
        sys.stdout.flush()
        return int(code or EXIT_OK)
    except KvbenchError as error:
        return _fail(str(error), error.exit_code)
    except click.ClickException as error:
        return _fail(f"{error.format_message()} (try kvbench --help)", EXIT_USAGE)
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted before there was a result", EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader (`| head`) has gone: not an error
        _abandon_output()
        return EXIT_OK
    except OSError as error:
        if error.filename is not None or error.errno not in _OF_OUTPUT:
            return _unexpected(error, arguments)
        _abandon_output()
        return _fail(f"cannot write the output: {error.strerror or error}", EXIT_FAILED)
    except Exception as error:
        return _unexpected(error, arguments)


def _abandon_output() -> None:
    """Let the flush at exit not fail again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unexpected(error: Exception, arguments: Sequence[str]) -> int:
    """A fault of kvbench itself: one line, and the trace for who asks for it."""
    if {"-v", "--verbose"} & set(arguments):
        import traceback

        traceback.print_exc()
    text = " ".join(str(error).split())
    return _fail(f"unexpected {type(error).__name__}: {text} (-v shows where; please report it)", EXIT_FAILED)


def _fail(message: str, code: int) -> int:
    label = click.style("kvbench:", fg="red")
    with contextlib.suppress(OSError, ValueError):  # stderr may be closed or full too: the exit code says it
        click.echo(f"{label} {printable(' '.join(message.split()))}", err=True, color=False if NO_COLOR else None)
    return code
