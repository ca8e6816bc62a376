import pytest

from kvbench.core.errors import UsageError
from kvbench.costs.devices import DEVICES
from kvbench.costs.named import find_device

NAMES = ["a10", "a100", "h100", "h100-pcie", "h200", "h20", "b200", "gb200", "l40s", "rtx-4090", "rtx-pro-6000"]
NAMES += ["mi300x", "ascend-910b", "ascend-910c"]


def test_the_catalogue_has_every_name_and_one_line_each():
    assert list(DEVICES) == NAMES
    for device in DEVICES.values():
        assert device.title in device.description
        assert "\n" not in device.description
        assert device.confidence in ("high", "medium", "low")
        assert device.source


def test_figures_are_dense():
    """The sparse or fp8 figures that circulate as dense fp16 ones are not in the catalogue."""
    assert find_device("h100").flops("bf16") == 989e12
    assert find_device("l40s").flops("bf16") == 362e12
    assert find_device("mi300x").flops("fp16") == 1307e12
    for device in DEVICES.values():
        for dtype in ("fp8", "int8"):
            assert device.flops(dtype) in (0, pytest.approx(2 * device.flops_bf16, rel=0.03)) or (
                device.name == "rtx-4090" and device.flops("int8") == 4 * device.flops_bf16
            )


def test_missing_units_and_links_are_zero():
    assert find_device("a100").flops("fp8") == 0
    assert find_device("h100").flops("fp4") == 0
    assert find_device("b200").flops("fp4") == 9e15
    assert [d.name for d in DEVICES.values() if not d.scale_up] == [
        "a10",
        "h100-pcie",
        "l40s",
        "rtx-4090",
        "rtx-pro-6000",
    ]


@pytest.mark.parametrize(("typed", "nearest"), [("H100", "h100"), ("4090", "rtx-4090"), ("mi300", "mi300x")])
def test_an_unknown_name_names_the_nearest(typed, nearest):
    with pytest.raises(UsageError, match=f"unknown device '{typed}'.*'{nearest}'"):
        find_device(typed)
