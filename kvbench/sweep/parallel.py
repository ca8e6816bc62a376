"""Tasks on all cores of this machine, or on a cluster, through joblib's own backends."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, TypeVar

from ..core.errors import KvbenchError, UsageError

BACKENDS = ("loky", "dask", "ray")
"""Processes of this machine; a dask.distributed cluster; a Ray cluster."""

_CONNECT_S = 15
LOST = "a worker died (killed, or out of memory); what had ended is kept, and the same command goes on from there"


T = TypeVar("T")
R = TypeVar("R")


def run_tasks(
    work: Callable[[T], R], tasks: Sequence[T], jobs: int, backend: str = BACKENDS[0], address: str | None = None
) -> Generator[R]:
    """work(task) of each, as they come. jobs: workers at most, -1: all.

    raises  UsageError: the backend is not installed, or there is no cluster at the address
            KvbenchError: a worker died
    """
    if not tasks:
        return
    import joblib

    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "(?s).*still being processed by the workers", UserWarning)  # after Ctrl-C
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)  # idle; it is replaced
        if jobs != 1 or backend != "loky":
            stack.enter_context(_backend(joblib, backend, address, stack))
        # Ray's backend gives everything at the end; files are written by the workers all the same.
        order = "list" if backend == "ray" else "generator_unordered"
        parallel = joblib.Parallel(n_jobs=jobs, batch_size=1, return_as=order)
        try:
            yield from parallel(joblib.delayed(work)(task) for task in tasks)
        except _lost(backend) as error:
            raise KvbenchError(LOST) from error


def _backend(joblib: Any, backend: str, address: str | None, stack: ExitStack) -> AbstractContextManager[Any]:
    try:
        if backend == "dask":
            return joblib.parallel_config(backend="dask", client=stack.enter_context(_dask_client(address)))
        if backend == "ray":
            _start_ray(address)
    except ImportError:
        raise UsageError(f"--backend {backend} needs {backend}: pip install 'kvbench[{backend}]'") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"--address {address}: no {backend} cluster answers there ({error})") from None
    return joblib.parallel_config(backend=backend)


def _dask_client(address: str | None) -> Any:
    from distributed import Client

    if address is None:
        raise UsageError("--backend dask needs its scheduler: --address tcp://host:8786")
    return Client(address, timeout=_CONNECT_S, set_as_default=False)


def _start_ray(address: str | None) -> None:
    """Without an address: a cluster on this machine."""
    import ray
    from ray.util.joblib import register_ray

    ray.init(address=address, ignore_reinit_error=True, log_to_driver=False)
    register_ray()


def _lost(backend: str) -> tuple[type[BaseException], ...]:
    """What a backend raises when a worker has died."""
    from concurrent.futures.process import BrokenProcessPool

    if backend == "dask":
        from distributed.scheduler import KilledWorker

        return (BrokenProcessPool, KilledWorker)
    if backend == "ray":
        from ray.exceptions import RayError

        return (BrokenProcessPool, RayError)
    return (BrokenProcessPool,)
