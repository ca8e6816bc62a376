"""The measured clock under a model whose tokens show what lies in every block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvbench.core.errors import KvbenchError, UsageError
from kvbench.engine.measured import MeasuredRun
from kvbench.engine.settings import EngineSettings

from . import systems
from .compare import small_tables
from .digest_model import DigestModel, answer
from .test_against_reference import LONG, SYSTEMS
from .test_clients import plain
from .workloads import request_table


def measured(asks, system: EngineSettings, **more) -> MeasuredRun:
    model = DigestModel(system.cache.num_blocks, system.block_tokens)
    return MeasuredRun(request_table(asks), system, small_tables(), model, **more)


def check_tokens(run: MeasuredRun) -> None:
    """Every token that a sequence has come to is what the model says with memory of its own."""
    texts, rows = run.texts, run.journal()
    seqs = np.arange(rows.output_tokens.size)
    for seq, generated in zip(seqs.tolist(), rows.output_tokens.tolist(), strict=True):
        first = int(texts.first[seq])
        said, drawn = (ids[first : first + generated].tolist() for ids in (texts.said, texts.drawn))
        assert drawn == answer(texts.prompt(seq).tolist(), said), f"sequence {seq}"


@pytest.mark.parametrize("overlap", [False, True], ids=["serial", "overlap"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_random_workloads_say_what_they_would_say_alone(name, overlap):
    @settings(
        max_examples=400 if LONG else 15,
        phases=tuple(Phase) if LONG else (Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(SYSTEMS[name](False))
    def check(case: systems.Case) -> None:
        asks, system = case
        run = measured(asks, replace(system, check=True, overlap=overlap))
        try:
            run.run()
        except KvbenchError as error:
            if "did not get the blocks" in str(error):  # SGLang dies there too
                return
            raise
        check_tokens(run)

    check()
