"""Where the step times of a run come from, in this order:

1. a file the run names: `--step-times FILE` (.npz of `kvbench device build`, or .csv of measured steps)
2. a device that is a file: `--device my-device.npz`, or a .toml that corrects another source
3. a table of measured kernels that ships with kvbench, where device, model, type, parallelism and engine match
4. the roofline of the datasheet
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .deployment import Deployment
from .keys import CostSettings

if TYPE_CHECKING:
    from .step_times import StepTimes, Wanted


def find_step_times(deployment: Deployment, settings: CostSettings, wanted: Wanted) -> StepTimes:
    """The step times of this deployment. UsageError: a file that is none, or of something else."""
    from .kv_times import own_share, quantised
    from .roofline import roofline_times
    from .shipped import shipped_times

    given = wanted.step_times or wanted.device
    if given.endswith(".csv"):
        from .step_csv import read_step_csv

        return read_step_csv(Path(given), deployment)
    if given.endswith(".npz"):
        from .step_times import check_fits, load_step_times

        times = load_step_times(Path(given))
        check_fits(times.origin, deployment, given, wanted.dp, wanted.ep)
        return times
    if given.endswith(".toml"):
        from .corrections import corrected

        return corrected(Path(given), lambda base: find_step_times(deployment, settings, base), wanted)
    found = shipped_times(deployment, wanted.engine) if settings.silicon and deployment.ep == 1 else None
    if found is not None:
        return quantised(found, deployment, settings)
    return quantised(roofline_times(deployment, settings), deployment, settings, own_share(deployment))


def host_times(device: str, step_times: str) -> dict[str, float]:
    """Keys of `[costs]` that a file of step times or corrections has measured; of anything else none."""
    given = step_times or device
    if given.endswith(".csv"):
        from .step_csv import NO_HOST

        return NO_HOST
    if given.endswith(".npz"):
        from .step_times import load_step_times

        return load_step_times(Path(given)).host
    if given.endswith(".toml"):
        from .corrections import read_corrections

        tree = read_corrections(Path(given))
        return {**host_times(tree["base"], ""), **tree["host"]}
    return {}
