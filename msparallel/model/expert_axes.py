"""How the devices of a stage share the work of an expert layer, in numbers.

In: an OpParallelConfig and the number of experts. Out: `ExpertAxes`. No MindSpore.

>>> expert_axes(OpParallelConfig(data_parallel=4, model_parallel=2, expert_parallel=4), num_experts=8)
ExpertAxes(outer=2, exchange=2, share=1, within=2)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from msparallel.errors import UserError
from msparallel.parallel_config import OpParallelConfig


@dataclass(frozen=True, kw_only=True)
class ExpertAxes:
    """Four axes in rank order, outermost first; their product is the devices of a stage.

    (outer, exchange) make up data parallel; (share, within) make up cp x tp, whose devices hold the same sequences.
    Experts are cut over exchange x within = expert_parallel; where exchange is above 1, share is 1.

    Attributes:
        outer: sequences are cut over it; experts repeat.
        exchange: sequences are cut over it outside, experts inside: the AllToAll.
        share: an expert's slots are cut over it; experts repeat.
        within: experts are cut over it, with no exchange of tokens.
    """

    outer: int
    exchange: int
    share: int
    within: int

    @property
    def owners(self) -> int:
        """Devices that hold a sequence and serve a part of its slots each."""
        return self.share * self.within

    @property
    def experts(self) -> int:
        """expert_parallel."""
        return self.exchange * self.within


def expert_axes(parallel: OpParallelConfig, num_experts: int) -> ExpertAxes:
    """Experts take the devices of cp x tp first, since these hold the tokens already, then those of data parallel.

    Raises:
        UserError: expert_parallel does not divide the experts or the devices of a stage, or its groups would be no
            blocks of neighbouring ranks.
    """
    dp, inner, ep = (
        parallel.data_parallel,
        parallel.context_parallel * parallel.model_parallel,
        parallel.expert_parallel,
    )
    possible = [
        n for n in range(1, dp * inner + 1) if not (num_experts % n or dp * inner % n or inner % n and n % inner)
    ]
    if ep not in possible:
        raise UserError(
            f"expert_parallel: {ep}\n  It must divide the {num_experts} experts and the {dp * inner} devices of a "
            f"stage (data_parallel {dp} x context_parallel x model_parallel {inner}), and divide the {inner} or be a "
            f"multiple of it. Use {' or '.join(map(str, possible))}."
        )
    within = min(ep, inner)
    return ExpertAxes(outer=dp * within // ep, exchange=ep // within, share=inner // within, within=within)


def expert_capacity(factor: float, seq: int, experts_per_token: int, num_experts: int) -> int:
    """Tokens of one sequence of `seq` tokens that one expert takes; a factor of 0 means all of them."""
    if not factor:
        return seq
    exact = factor * seq * experts_per_token / num_experts
    return min(seq, math.ceil(exact - 1e-9))  # 1.1 * 10 is 11.000000000000002 in binary
