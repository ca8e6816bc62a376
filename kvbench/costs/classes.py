"""What a datasheet leaves open, per class of devices: shares of its rates that steps reach, gaps, floors.

Fitted to measured step times that no table of errors is made of (`benchmarks/roofline_fit.py` prints them anew):

hbm     48 tables of measured kernels at 16 bits (H100, H200; vLLM, SGLang; three models, tp 1-8): error of a step
        3.1 % in the median, p90 9 %; fitted on H100 alone 3.1 % on H200, on Llama alone 3.0 % on Qwen3, at tp 1-2
        3.7 % at tp 4-8. Products of 8 bits and less: the 48 tables of fp8, 7 %
gddr    profiles of an RTX 4090 and an RTX PRO 6000, one model each: 5.5 %, p90 13 %
ascend  shares as hbm, not fitted; the floor is that of a 910B3 (vllm-ascend's table of measured steps, 14B to 32B at
        tp 8, before whole steps were captured)

The gap before each kernel stands for the least time of small kernels too, so it is longer than a launch. The links'
time is in their share, and next to none is fixed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .devices import Device
from .keys import FITTED_US, CostSettings

_GDDR = ("a10", "l40s", "rtx-4090", "rtx-pro-6000")
_WIDE = ("bf16", "fp16")


@dataclass(frozen=True)
class DeviceClass:
    """flops, narrow_flops: share of the FLOP/s at 16 bits, and at fewer; see CostSettings for the others."""

    name: str
    flops: float
    narrow_flops: float
    bandwidth: float
    link: float
    allreduce_us: float
    launch_us: float
    floor_us: float = 0.0


HBM = DeviceClass("hbm", 0.70, 0.53, 0.88, 0.50, 1.0, 5.2)
GDDR = DeviceClass("gddr", 0.92, 0.92, 0.82, 0.50, 10.0, 1.5)
ASCEND = replace(HBM, name="ascend", floor_us=14_800.0)


def class_of(device: Device) -> DeviceClass:
    """The class whose fits hold for a device."""
    if device.name.startswith("ascend"):
        return ASCEND
    return GDDR if device.name in _GDDR else HBM


def fitted(settings: CostSettings, device: Device, dtype: str) -> CostSettings:
    """Settings with nothing open: what is not given is that of the device's class."""
    kind = class_of(device)

    def us(given: float, of_class: float) -> float:
        return of_class if given == FITTED_US else given

    return replace(
        settings,
        flops_efficiency=settings.flops_efficiency or (kind.flops if dtype in _WIDE else kind.narrow_flops),
        bandwidth_efficiency=settings.bandwidth_efficiency or kind.bandwidth,
        link_efficiency=settings.link_efficiency or kind.link,
        allreduce_latency_us=us(settings.allreduce_latency_us, kind.allreduce_us),
        launch_us=us(settings.launch_us, kind.launch_us),
        floor_us=us(settings.floor_us, kind.floor_us),
    )
