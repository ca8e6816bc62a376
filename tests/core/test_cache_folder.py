"""Compiled code is kept where nobody else can write: what Numba reads back is a pickle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvbench.core import cache_folder
from kvbench.core.cache_folder import OF_PARENT, choose_cache, reason_against

DIGEST = "0123456789abcdef"


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """The user's cache folder; a private one made instead is forgotten after the test."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv(OF_PARENT, "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(cache_folder.tempfile, "tempdir", str(tmp_path))
    return tmp_path / "home" / "kvbench" / "jit"


def refused(capsys, root: Path) -> str:
    """The line that says why the root is not used; what is used is fresh and private."""
    found = choose_cache(DIGEST)
    assert root not in found.parents
    assert found.parent.stat().st_mode & 0o777 == 0o700
    assert list(found.iterdir()) == []
    (line,) = capsys.readouterr().err.splitlines()
    assert str(root) in line
    return line


def test_the_users_own_folder_is_made_closed_and_used(root, capsys):
    umask = os.umask(0)
    try:
        found = choose_cache(DIGEST)
    finally:
        os.umask(umask)
    assert found == root / DIGEST
    assert {p.stat().st_mode & 0o777 for p in (root, found)} == {0o700}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o707])
@pytest.mark.parametrize("below", ["", DIGEST])
def test_a_folder_that_others_can_write_is_not_used(root, capsys, mode, below):
    planted = root / below
    planted.mkdir(parents=True, mode=0o700)
    (planted / "planted.nbi").write_bytes(b"")
    planted.chmod(mode)
    assert "can be written by others" in refused(capsys, root)


def test_a_folder_of_another_user_is_not_used(root, capsys, monkeypatch):
    """Also if it is open to nobody: who owns it can plant what is read."""
    root.mkdir(parents=True, mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: root.stat().st_uid + 1)
    assert "belongs to another user" in refused(capsys, root)


def test_no_name_in_the_temporary_folder_can_be_foreseen(root, capsys):
    root.parent.mkdir(parents=True)
    root.write_text("a file")
    first = choose_cache(DIGEST)
    os.environ[OF_PARENT] = ""
    assert choose_cache(DIGEST).parent != first.parent


def test_workers_share_the_private_folder(root, capsys):
    root.mkdir(parents=True)
    root.chmod(0o777)
    first = choose_cache(DIGEST)
    assert os.environ[OF_PARENT] == str(first.parent)
    capsys.readouterr()
    assert choose_cache(DIGEST) == first
    assert capsys.readouterr().err == ""


def test_a_private_folder_goes_with_its_process(root):
    root.mkdir(parents=True)
    root.chmod(0o777)
    program = f"from kvbench.core.cache_folder import choose_cache; print(choose_cache('{DIGEST}'))"
    package = Path(cache_folder.__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(package)}, capture_output=True, text=True
    )
    assert done.stderr.startswith("kvbench: ")
    assert not Path(done.stdout.strip()).parent.exists()


def test_a_place_that_cannot_be_is_not_used(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be made" in reason_against(tmp_path / "file" / "jit")


def test_old_digests_are_pruned_and_fresh_ones_stay(tmp_path):
    old = [tmp_path / f"{i:016x}" for i in range(8)]
    for i, folder in enumerate(old):
        folder.mkdir()
        os.utime(folder, (1e9 + i, 1e9 + i))
    fresh = tmp_path / ("a" * 16)
    fresh.mkdir()
    cache_folder.prune(tmp_path, keep=old[0])
    left = {p for p in tmp_path.iterdir() if len(p.name) == 16}
    assert old[0] in left
    assert fresh in left
    assert len(left) <= 4
