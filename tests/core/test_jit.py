"""The JIT foundation: where the cache lies, what it is keyed by, and the struct helper in both modes."""

from __future__ import annotations

import ast
import gc
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from kvbench.core import jit

PACKAGE = Path(jit.__file__).resolve().parent.parent

PROGRAM = """
import sys
import numpy as np
from kvbench.core import jit
from kvbench.core.compile_watch import compile_watch
from kvbench.memory.pool import make_pool
pool = make_pool(5, "append")
print(jit.CACHE_DIR, jit.PLAIN, pool.num_free, pool.ring[:5].tolist(), compile_watch.functions)
"""


def run(program: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(PACKAGE.parent)} | environment
    for name in ("NUMBA_CACHE_DIR", *(() if "NUMBA_DISABLE_JIT" in environment else ("NUMBA_DISABLE_JIT",))):
        env.pop(name, None)
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], env=env, capture_output=True, text=True, check=True
    )


def test_the_first_run_says_that_it_compiles_and_the_second_loads(tmp_path):
    first, second = run(PROGRAM, tmp_path), run(PROGRAM, tmp_path)
    assert "compiling for this machine" in first.stderr
    assert second.stderr == ""
    folder, plain, free, _ = first.stdout.split(" ", 3)
    assert Path(folder).parent == tmp_path / "kvbench" / "jit"
    assert (plain, free) == ("False", "5")
    assert second.stdout.rsplit(" ", 1)[1].strip() == "0"


def test_a_home_that_cannot_be_written_is_one_line_and_nothing_is_called_kept(tmp_path):
    (tmp_path / "file").touch()  # root may write where nobody else can, but not below a file
    done = run(PROGRAM, tmp_path / "file" / "home")
    lines = done.stderr.splitlines()
    assert [line for line in lines if "compiled code is not kept" in line] == lines[:1]
    assert lines[1:] == ["kvbench: compiling for this machine"]
    assert "[1, 2, 3, 4, 5]" in done.stdout


def test_two_processes_at_once(tmp_path):
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(PACKAGE.parent)}
    env.pop("NUMBA_DISABLE_JIT", None)
    both = [
        subprocess.Popen([sys.executable, "-c", PROGRAM], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(2)
    ]
    for process in both:
        out, error = process.communicate(timeout=300)
        assert process.returncode == 0, error.decode()
        assert b"[1, 2, 3, 4, 5]" in out


def test_without_jit_the_same_code_runs(tmp_path):
    done = run(PROGRAM, tmp_path, NUMBA_DISABLE_JIT="1")
    assert " True 5 [1, 2, 3, 4, 5] 0" in done.stdout
    assert done.stderr == ""


def test_flags_and_sources_change_the_digest(tmp_path, monkeypatch):
    before = jit.source_digest()
    assert before == jit.source_digest()
    monkeypatch.setattr(jit.numba_config, "BOUNDSCHECK", 1)
    assert jit.source_digest() != before
    monkeypatch.undo()
    monkeypatch.setattr(jit.numba, "__version__", "0.0")
    assert jit.source_digest() != before


def test_every_room_that_is_jitted_is_in_the_digest():
    for path in PACKAGE.rglob("*.py"):
        imports = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and (node.module or "").endswith("core.jit")
            for alias in node.names
        }
        if imports & {"jit", "entry", "inline", "struct"}:
            assert path.relative_to(PACKAGE).parts[0] in jit._JITTED_ROOMS, path


@pytest.mark.skipif(jit.PLAIN, reason="plain classes do not check")
def test_a_struct_refuses_a_wrong_dtype():
    from kvbench.prefix.keys import BlockKeys

    good = np.zeros(1, np.int64)
    with pytest.raises(TypeError, match=r"BlockKeys\.first wants"):
        BlockKeys(good, good, good)
    with pytest.raises(TypeError, match="takes 3 fields, got 2"):
        BlockKeys(good, good)


@pytest.mark.skipif(jit.PLAIN, reason="plain classes have no types")
def test_a_struct_is_named_by_its_class_and_not_by_what_is_in_it():
    from kvbench.scheduler.state import Engine

    assert Engine.numba_type.name == "kvbench.scheduler.state.EngineType"
    assert Engine.numba_type.get_data_type().name == "kvbench.scheduler.state.EngineType.payload"


def test_garbage_is_looked_for_seldom_until_the_outermost_function_is_compiled():
    usual, watch = gc.get_threshold(), jit._RareCollections()
    watch.on_start(None)
    watch.on_start(None)
    assert gc.get_threshold() > usual
    watch.on_end(None)
    assert gc.get_threshold() > usual
    watch.on_end(None)
    assert gc.get_threshold() == usual
