"""Build the tables of measured kernels that ship with kvbench; needs the extra kvbench[silicon].

python benchmarks/silicon_tables.py kvbench/costs/measured
"""

from __future__ import annotations

import sys
from pathlib import Path

from kvbench.costs.silicon import silicon_step_times
from kvbench.costs.step_times import save_step_times

MODELS = {
    "llama-3.1-8b": ("bf16", "fp8", "fp8-block"),
    "llama-3.1-70b": ("bf16", "fp8"),
    "qwen3-32b": ("bf16", "fp8", "fp8-block"),
}


def main(folder: Path) -> None:
    """One file per device, engine, model, type and tensor-parallel degree."""
    for device in ("h100", "h200"):
        for engine in ("vllm", "sglang"):
            for model, dtypes in MODELS.items():
                for dtype in dtypes:
                    for tp in (1, 2, 4, 8):
                        path = folder / device / engine / f"{model}_{dtype}_tp{tp}.npz"
                        path.parent.mkdir(parents=True, exist_ok=True)
                        save_step_times(silicon_step_times(f"{device}_sxm", engine, model, tp, dtype), path)
                        print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
