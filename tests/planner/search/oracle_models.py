"""Eight models for which MindSpeed published the strategy of an expert and the one that its own search chose.

Source of the strategies: Ascend/MindSpeed, docs/zh/figures/auto_parallel_2.png, read by eye: (pp, tp, dp, cp, up, mbs),
where up are ranks that share a sequence by Ulysses. The figure names models and numbers of NPUs, nothing else.
Shapes: config.json of the Hugging Face repository named at each. Sequence, global batch, type and distributed
optimizer: the pre-training script of the model in branch 1.0.RC3 of Ascend/MindSpeed-LLM; what is assumed is marked.
Messages fused into products (mc2) are taken to be off: with them the speeds of llama3-8B's two strategies would not be
the figure's.
"""

from __future__ import annotations

from dataclasses import dataclass

from msparallel.hardware import Dtype
from msparallel.mesh import Mesh
from msparallel.model.shape import ModelShape
from msparallel.planner.search.space import Space
from msparallel.planner.stack import megatron
from msparallel.planner.workload import Workload

Strategy = tuple[int, int, int, int, int, int]


def _llama(
    layers: int, hidden: int, heads: int, ffn: int, *, kv_heads: int = 0, vocab: int = 32000
) -> ModelShape:
    return ModelShape(num_layers=layers, hidden_size=hidden, num_heads=heads, num_kv_heads=kv_heads, ffn_size=ffn,
                      vocab_size=vocab, max_positions=8192)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Case:
    """Attributes:
    distributed_optimizer, overlap_gradients: whether optimizer state is shared out over replicas, and whether gradients
        are reduced during the backward pass (the script's use-distributed-optimizer and overlap-grad-reduce).
    expert, auto: (pp, tp, dp, cp, up, mbs).
    """

    name: str
    devices: int
    shape: ModelShape
    seq_length: int
    global_batch_size: int
    dtype: Dtype
    distributed_optimizer: bool
    overlap_gradients: bool = False
    expert: Strategy
    auto: Strategy

    @property
    def work(self) -> Workload:
        """Without a strategy."""
        return Workload(
            shape=self.shape, mesh=Mesh(), devices_per_node=8, stage_layers=(self.shape.num_layers,),
            micro_batch_size=1, micro_batch_num=1, seq_length=self.seq_length, dtype=self.dtype,
            stack=megatron(self.dtype, mindspeed=True), overlap_gradients=self.overlap_gradients,
        )  # fmt: skip

    @property
    def space(self) -> Space:
        """MindSpeed's: no recomputation, no interleaving, sequence parallel wherever there is tp."""
        return Space(
            devices=self.devices, devices_per_node=8, global_batch_size=self.global_batch_size, recompute=("none",),
            optimizer_shard=("none", "level1") if self.distributed_optimizer else ("none",),
            sequence_parallel=(True,), most_micro_batch=4, most_virtual_stages=1,
        )  # fmt: skip


CASES = [
    # huggyllama/llama-7b; examples/llama/pretrain_llama_7b_ptd.sh
    Case(name="llama7B", devices=8, shape=_llama(32, 4096, 32, 11008), seq_length=2048, global_batch_size=256,
         dtype="float16", distributed_optimizer=False, expert=(8, 1, 1, 1, 1, 4), auto=(4, 1, 2, 1, 1, 2)),
    # meta-llama/Meta-Llama-3-8B; examples/mcore/llama3/pretrain_llama3_8b_ptd.sh
    Case(name="llama3-8B", devices=8, shape=_llama(32, 4096, 32, 14336, kv_heads=8, vocab=128256), seq_length=8192,
         global_batch_size=64, dtype="bfloat16", distributed_optimizer=False, expert=(1, 8, 1, 1, 1, 2),
         auto=(4, 1, 1, 1, 2, 1)),
    # meta-llama/Llama-2-13b-hf; examples/mcore/llama2/pretrain_llama2_13b_ptd.sh
    Case(name="llama2-13B", devices=8, shape=_llama(40, 5120, 40, 13824), seq_length=4096, global_batch_size=512,
         dtype="bfloat16", distributed_optimizer=False, expert=(1, 8, 1, 1, 1, 4), auto=(4, 2, 1, 1, 1, 1)),
    # GPT-2's blocks at the size of GPT-3 13B (Brown et al., arXiv:2005.14165, table 2.1). No script of that size;
    # assumed: sequence, type and optimizer of examples/gpt3/pretrain_gpt3_175B_ptd.sh, a batch of 256.
    Case(name="GPT2-like 13B", devices=32,
         shape=ModelShape(num_layers=40, hidden_size=5120, num_heads=40, ffn_size=20480, vocab_size=50257,
                          vocab_multiple=128, position="learned", max_positions=2048, norm="layer", activation="gelu",
                          attention_bias=True, output_bias=True, ffn_bias=True),
         seq_length=2048, global_batch_size=256, dtype="float16", distributed_optimizer=False, overlap_gradients=True,
         expert=(1, 8, 4, 1, 1, 4), auto=(8, 1, 4, 1, 1, 1)),
    # meta-llama/Llama-2-7b-hf; examples/mcore/llama2/pretrain_llama2_7b_ptd.sh
    Case(name="llama2-7B", devices=8, shape=_llama(32, 4096, 32, 11008), seq_length=4096, global_batch_size=256,
         dtype="bfloat16", distributed_optimizer=True, overlap_gradients=True, expert=(2, 1, 4, 1, 1, 1),
         auto=(2, 1, 4, 1, 1, 1)),
    # huggyllama/llama-13b; examples/llama/pretrain_llama_13b_ptd.sh
    Case(name="llama13B", devices=8, shape=_llama(40, 5120, 40, 13824), seq_length=2048, global_batch_size=128,
         dtype="float16", distributed_optimizer=False, expert=(8, 1, 1, 1, 1, 1), auto=(8, 1, 1, 1, 1, 1)),
    # codellama/CodeLlama-34b-hf, the published model of that size; assumed: a batch of 256, no distributed optimizer.
    Case(name="llama2-34B", devices=16, shape=_llama(48, 8192, 64, 22016, kv_heads=8), seq_length=4096,
         global_batch_size=256, dtype="bfloat16", distributed_optimizer=False, expert=(2, 8, 1, 1, 1, 2),
         auto=(2, 8, 1, 1, 1, 2)),
    # huggyllama/llama-65b; examples/llama/pretrain_llama_65b_ptd.sh
    Case(name="llama65B", devices=32, shape=_llama(80, 8192, 64, 22016), seq_length=2048, global_batch_size=128,
         dtype="bfloat16", distributed_optimizer=True, expert=(4, 8, 1, 1, 1, 2), auto=(4, 8, 1, 1, 1, 2)),
]  # fmt: skip
