"""What the blocks read to cut themselves: degrees and switches, as plain numbers.

In: degrees from a Plan, or MindFormers' own config objects. Out: `OpParallelConfig` (MindFormers' field names).
`ModelParallelConfig` carries the same under Megatron's names; MAPPING is the one table between the two.

>>> OpParallelConfig(data_parallel=2, model_parallel=4).token_parallel
2
>>> read_parallel_config(ModelParallelConfig(tensor_model_parallel_size=4)).model_parallel
4
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class OpParallelConfig:
    """Degrees inside one pipeline stage, and what each block does with them.

    Attributes:
        data_parallel, model_parallel, context_parallel: degrees of the axes dp, tp and cp.
        use_seq_parallel: between the tensor-parallel matrices, tokens are cut over tp as well (Megatron's
            sequence parallel).
        context_parallel_algo: MindFormers' names for the exchange of keys and values.
        expert_parallel: experts are cut over this many of the dp x cp x tp devices of a stage.
        vocab_parallel: embedding and LM head are cut along the vocabulary over tp.
        recompute: `full` recomputes a layer in the backward pass, `selective` its attention core only.
        sharded: False on one device and in data-parallel mode: no operator gets a strategy.
    """

    data_parallel: int = 1
    model_parallel: int = 1
    context_parallel: int = 1
    use_seq_parallel: bool = False
    context_parallel_algo: Literal["colossalai_cp", "ulysses_cp"] = "colossalai_cp"
    expert_parallel: int = 1
    vocab_parallel: bool = True
    recompute: Literal["none", "selective", "full"] = "none"
    sharded: bool = True

    @property
    def token_parallel(self) -> int:
        """Into how many pieces the tokens of the residual stream are cut."""
        tokens = self.data_parallel * self.context_parallel
        return tokens * self.model_parallel if self.use_seq_parallel else tokens

    @property
    def vocab_degree(self) -> int:
        """Into how many pieces the vocabulary is cut."""
        return self.model_parallel if self.vocab_parallel else 1


@dataclass(frozen=True, kw_only=True)
class ModelParallelConfig:
    """The same degrees under the names of Megatron and of MindFormers' parallel core."""

    data_parallel_size: int = 1
    tensor_model_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    context_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    sequence_parallel: bool = False
    micro_batch_num: int = 1


MAPPING = {
    "data_parallel_size": "data_parallel",
    "tensor_model_parallel_size": "model_parallel",
    "context_parallel_size": "context_parallel",
    "expert_model_parallel_size": "expert_parallel",
    "sequence_parallel": "use_seq_parallel",
}
"""ModelParallelConfig field -> OpParallelConfig field. Fields outside one stage (pipeline) have no counterpart."""


def read_parallel_config(config: Any, **switches: Any) -> OpParallelConfig:
    """OpParallelConfig from ours, MindFormers' OpParallelConfig or either ModelParallelConfig.

    Args:
        config: an object with the attributes of one of the two families.
        switches: fields of OpParallelConfig that the object's family does not have (`recompute`, `vocab_parallel` ...).

    Raises:
        TypeError: the object belongs to neither family.
    """
    if isinstance(config, OpParallelConfig) and not switches:
        return config
    names = {field.name for field in fields(OpParallelConfig)}
    if hasattr(config, "tensor_model_parallel_size"):
        values = {ours: getattr(config, theirs) for theirs, ours in MAPPING.items() if hasattr(config, theirs)}
    elif hasattr(config, "model_parallel"):
        values = {name: getattr(config, name) for name in names if hasattr(config, name)}
        if "recompute" not in values and getattr(config, "select_recompute", False):
            values["recompute"] = "selective"
        algo = values.get("context_parallel_algo", "colossalai_cp")
        values["context_parallel_algo"] = getattr(algo, "value", algo)  # MindFormers keeps an enum
    else:
        raise TypeError(f"{type(config).__name__} has neither model_parallel nor tensor_model_parallel_size")
    return OpParallelConfig(**{**values, **switches})
