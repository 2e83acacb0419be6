from dataclasses import fields
from enum import Enum
from types import SimpleNamespace

import pytest

from msparallel.parallel_config import MAPPING, ModelParallelConfig, OpParallelConfig, read_parallel_config

pytestmark = pytest.mark.pure


def test_ours_passes_through():
    config = OpParallelConfig(data_parallel=2, model_parallel=4, expert_parallel=8)
    assert read_parallel_config(config) is config


@pytest.mark.parametrize(("theirs", "ours"), MAPPING.items())
def test_every_row_of_the_table_carries_its_own_value(theirs, ours):
    """A value set on one side arrives under the other name, and nothing else moves."""
    value = True if theirs == "sequence_parallel" else 3
    config = read_parallel_config(ModelParallelConfig(**{theirs: value}))
    assert getattr(config, ours) == value
    rest = {field.name for field in fields(OpParallelConfig)} - {ours}
    assert all(getattr(config, name) == getattr(OpParallelConfig(), name) for name in rest)


def test_mindformers_op_parallel_config_is_accepted():
    """Its fields, with the algorithm as the enum that it keeps."""

    class ContextParallelAlgo(Enum):
        ulysses_cp = "ulysses_cp"

    theirs = SimpleNamespace(data_parallel=2, model_parallel=4, context_parallel=2, use_seq_parallel=True,
                             select_recompute=True, context_parallel_algo=ContextParallelAlgo.ulysses_cp)  # fmt: skip
    assert read_parallel_config(theirs, expert_parallel=4) == OpParallelConfig(
        data_parallel=2, model_parallel=4, context_parallel=2, use_seq_parallel=True,
        context_parallel_algo="ulysses_cp",
        recompute="selective", expert_parallel=4)  # fmt: skip


def test_mindformers_own_classes():
    """The real objects, where MindFormers is installed."""
    op_config = pytest.importorskip(
        "mindformers.modules.transformer", reason="MindFormers is not installed"
    ).OpParallelConfig
    core = pytest.importorskip("mindformers.parallel_core.model_parallel_config").ModelParallelConfig
    assert read_parallel_config(op_config(data_parallel=2, model_parallel=4)).model_parallel == 4
    assert read_parallel_config(core(tensor_model_parallel_size=4, expert_model_parallel_size=2)).expert_parallel == 2


def test_token_parallel():
    assert OpParallelConfig(data_parallel=2, context_parallel=2, model_parallel=4).token_parallel == 4
    assert (
        OpParallelConfig(data_parallel=2, context_parallel=2, model_parallel=4, use_seq_parallel=True).token_parallel
        == 16
    )


def test_a_stranger_is_refused():
    with pytest.raises(TypeError, match="dict has neither"):
        read_parallel_config({})
