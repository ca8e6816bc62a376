"""Tables of measured kernels that ship with kvbench: costs/measured/DEVICE/ENGINE/MODEL_DTYPE_tpN.npz.

They are made by `kvbench device build --silicon` (see silicon.py) from aiconfigurator-core, Apache-2.0.
"""

from __future__ import annotations

from importlib.resources import as_file, files

from .deployment import Deployment
from .models import MODELS
from .step_times import StepTimes, load_step_times, shape_of


def shipped_times(deployment: Deployment, engine: str) -> StepTimes | None:
    """The table that was measured for this device, model, type and parallelism under this engine, if one is here.

    Its KV is at 16 bits: see kv_times for a quantised cache.
    """
    d = deployment
    model = next((m.name for m in MODELS.values() if shape_of(m) == shape_of(d.model)), "")
    resource = files(__package__) / "measured" / d.device.name / engine / f"{model}_{d.dtype}_tp{d.tp}.npz"
    if d.kv_dtype == "fp16" or not engine or not resource.is_file():
        return None
    with as_file(resource) as path:
        return load_step_times(path)
