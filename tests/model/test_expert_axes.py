"""Which devices of a stage share an expert layer, and how many tokens an expert takes."""

import pytest

from msparallel.errors import UserError
from msparallel.model.expert_axes import ExpertAxes, expert_axes, expert_capacity
from msparallel.parallel_config import OpParallelConfig

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("dp", "cp", "tp", "ep", "axes"),
    [
        (4, 1, 1, 1, (4, 1, 1, 1)),
        (4, 1, 1, 2, (2, 2, 1, 1)),
        (2, 1, 4, 1, (2, 1, 4, 1)),
        (2, 1, 4, 2, (2, 1, 2, 2)),
        (2, 1, 4, 4, (2, 1, 1, 4)),
        (2, 1, 4, 8, (1, 2, 1, 4)),
        (8, 2, 2, 8, (4, 2, 1, 4)),
    ],
)
def test_devices_of_cp_and_tp_come_first(dp, cp, tp, ep, axes):
    parallel = OpParallelConfig(data_parallel=dp, context_parallel=cp, model_parallel=tp, expert_parallel=ep)
    found = expert_axes(parallel, num_experts=16)
    assert (found.outer, found.exchange, found.share, found.within) == axes
    assert found.outer * found.exchange == dp
    assert found.owners == found.share * found.within == cp * tp
    assert found.experts == ep


@pytest.mark.parametrize(
    ("dp", "tp", "ep", "experts", "degrees"),
    [
        (2, 1, 4, 8, "Use 1 or 2."),  # more than there are devices
        (8, 1, 8, 12, "Use 1 or 2 or 4."),  # 12 experts
        (6, 4, 6, 12, "Use 1 or 2 or 4 or 12."),  # groups of 6 would begin inside one tp group and end in another
    ],
)
def test_degrees_that_do_not_fit(dp, tp, ep, experts, degrees):
    parallel = OpParallelConfig(data_parallel=dp, model_parallel=tp, expert_parallel=ep)
    with pytest.raises(UserError) as error:
        expert_axes(parallel, experts)
    assert str(error.value).startswith(
        f"expert_parallel: {ep}\n  It must divide the {experts} experts and the {dp * tp}"
    )
    assert str(error.value).endswith(degrees)
    for degree in degrees.removeprefix("Use ").removesuffix(".").split(" or "):
        fitting = OpParallelConfig(data_parallel=dp, model_parallel=tp, expert_parallel=int(degree))
        assert isinstance(expert_axes(fitting, experts), ExpertAxes)


@pytest.mark.parametrize(
    ("factor", "seq", "chosen", "experts", "capacity"),
    [
        (0.0, 64, 2, 8, 64),  # dropless
        (1.0, 64, 2, 8, 16),
        (1.1, 100, 1, 10, 11),  # 1.1 * 10 in binary is a little more than 11
        (1.25, 64, 2, 8, 20),
        (0.01, 64, 2, 8, 1),
        (1.5, 4096, 8, 128, 384),
        (100.0, 64, 2, 8, 64),  # an expert is chosen once per token
    ],
)
def test_capacity(factor, seq, chosen, experts, capacity):
    assert expert_capacity(factor, seq, chosen, experts) == capacity
