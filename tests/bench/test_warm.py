"""`kvbench warm`: what it runs are commands that exist; one that fails is told."""

from __future__ import annotations

import re

import pytest

from kvbench.bench import warm
from kvbench.cli import call
from kvbench.core.errors import KvbenchError

from ..test_docs import context


@pytest.mark.parametrize("command", warm.KINDS["all"], ids=" ".join)
def test_every_command_is_understood(command):
    assert context(list(command)).info_name


def test_it_runs_commands_and_says_where_code_is(monkeypatch, capsys):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    monkeypatch.setitem(warm.KINDS, "engine", (("list",), ("config", "chat")))
    assert call(["warm"]) == 0
    assert re.match(r"2 commands in \d+ s; ", capsys.readouterr().out)


def test_a_command_that_fails_is_told(monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    with pytest.raises(KvbenchError, match=r"`kvbench run nowhere` ended with exit code 2: .*nowhere"):
        warm.warm([("run", "nowhere")], lambda done, total: None)
