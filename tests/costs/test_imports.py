import subprocess
import sys

PLAIN = "devices, models, config_json, deployment, memory, keys"


def test_the_catalogue_needs_no_numpy():
    """`kvbench list` and `--help` stay fast: what they read imports neither NumPy nor Numba."""
    code = f"import sys; from kvbench.costs import {PLAIN}; print({{'numpy', 'numba'}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
