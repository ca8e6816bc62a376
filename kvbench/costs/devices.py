"""Devices the modelled clock knows, by datasheet.

Rates are dense (no sparsity) and for one device; links are per direction. Memory is what the driver
reports or, where only the label is known, the label read as GiB (an "80 GB" HBM device has 80 GiB).
`confidence` says how far to trust a row: high (datasheet and a published system file agree), medium (one
of them), low (papers and vendor slides only).
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.errors import UsageError

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class Device:
    """One accelerator. 0 in a rate or a link means that it has none.

    memory_bytes      whole device memory
    memory_bandwidth  bytes/s
    flops_bf16 ...    FLOP/s (int8: OP/s), dense; fp16 runs at the rate of bf16
    scale_up          bytes/s per direction to the other devices of its scale-up domain (NVLink, HCCS, ...)
    host_link         bytes/s per direction to the host (PCIe)
    """

    name: str
    title: str
    memory_bytes: int
    memory_bandwidth: float
    flops_bf16: float
    flops_fp8: float
    flops_int8: float
    flops_fp4: float
    scale_up: float
    host_link: float
    confidence: str
    source: str

    def flops(self, dtype: str) -> float:
        """FLOP/s of matrix products with inputs of this dtype; 0 where the device has no such units."""
        rates = {
            "bf16": self.flops_bf16,
            "fp16": self.flops_bf16,
            "fp8": self.flops_fp8,
            "fp8-block": self.flops_fp8,
            "int8": self.flops_int8,
            "fp4": self.flops_fp4,
        }
        return rates[dtype]

    @property
    def description(self) -> str:
        """One line for a list."""
        return (
            f"{self.title}: {self.memory_bytes / GIB:.0f} GiB at {self.memory_bandwidth / 1e12:.2f} TB/s, "
            f"{self.flops_bf16 / 1e12:.0f} bf16 TFLOP/s ({self.confidence} confidence)"
        )


_AIC = "aiconfigurator 0.12 system file"
_SHEET = "vendor datasheet"
_CLOUDMATRIX = "arXiv 2506.12708 and a vendor document; no public datasheet"


def _device(
    name: str,
    title: str,
    memory_bytes: int,
    terabytes_s: float,
    teraflops: tuple[float, float, float, float],
    gigabytes_s: tuple[float, float],
    confidence: str,
    source: str,
) -> Device:
    """A row of the catalogue: teraflops are (bf16, fp8, int8, fp4), gigabytes_s (scale-up, host)."""
    bf16, fp8, int8, fp4 = (t * 1e12 for t in teraflops)
    scale_up, host = (g * 1e9 for g in gigabytes_s)
    bandwidth = terabytes_s * 1e12
    return Device(name, title, memory_bytes, bandwidth, bf16, fp8, int8, fp4, scale_up, host, confidence, source)


_ROWS = (
    _device("a10", "A10", 24 * GIB, 0.6, (125, 0, 250, 0), (0, 32), "medium", _SHEET),
    _device("a100", "A100 SXM 80 GB", 80 * GIB, 2.039, (312, 0, 624, 0), (300, 32), "high", _AIC),
    _device("h100", "H100 SXM", 80 * GIB, 3.35, (989, 1978, 1978, 0), (450, 64), "high", _AIC),
    _device("h100-pcie", "H100 PCIe", 80 * GIB, 2.0, (756, 1513, 1513, 0), (0, 64), "high", _SHEET),
    _device("h200", "H200 SXM", 141 * GIB, 4.8, (989, 1978, 1978, 0), (450, 64), "high", _AIC),
    _device("h20", "H20", 96 * GIB, 4.0, (148, 296, 296, 0), (450, 64), "medium", _SHEET),
    _device("b200", "B200", 180 * GIB, 7.7, (2250, 4500, 4500, 9000), (900, 64), "medium", _AIC),
    _device("gb200", "GB200", 189471 * MIB, 8.0, (2500, 5000, 5000, 10000), (900, 0), "medium", _AIC),
    _device("l40s", "L40S", 46068 * MIB, 0.864, (362, 733, 733, 0), (0, 32), "high", _AIC),
    _device("rtx-4090", "RTX 4090", 24 * GIB, 1.008, (165, 330, 660, 0), (0, 32), "high", _SHEET),
    _device("rtx-pro-6000", "RTX PRO 6000", 96 * GIB, 1.792, (468, 936, 936, 0), (0, 64), "medium", _SHEET),
    _device("mi300x", "MI300X", 192 * GIB, 5.3, (1307, 2615, 2615, 0), (448, 64), "medium", _SHEET),
    _device("ascend-910b", "Ascend 910B2", 64 * GIB, 1.6, (354, 0, 708, 0), (392, 32), "low", _CLOUDMATRIX),
    # The sources differ (752-800 TFLOP/s for both dies): the lower figure.
    _device("ascend-910c", "Ascend 910C, two dies", 128 * GIB, 3.2, (752, 0, 1504, 0), (392, 32), "low",
            _CLOUDMATRIX),
)  # fmt: skip

DEVICES: dict[str, Device] = {device.name: device for device in _ROWS}


def find_hardware(name: str) -> Device:
    """The device that another tool's name means: RTX4090, h200_sxm, NVIDIA H100."""
    plain = "".join(c for c in name.lower() if c.isalnum()).removeprefix("nvidia").removesuffix("sxm")
    for device in DEVICES.values():
        if plain == device.name.replace("-", ""):
            return device
    raise UsageError(f"hardware {name!r} is none of the known devices ({', '.join(DEVICES)}); name it with --device")
