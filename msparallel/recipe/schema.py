"""The recipe's sections as types: names, units, legal values and what each key means.

In: plain values read from YAML. Out: immutable sections. A key that is not here is an error; a key left out keeps the
default shown here or is derived (`None`). Relations between keys are in `rules/`, derivations in `msparallel.plan`.

>>> Parallel(mode="semi_auto_parallel", model_parallel=4).data_parallel
1
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MOST_WIDTH, MOST_ROWS = 1_000_000, 100_000_000
"""Limits of a tensor's dims: features, heads and samples; tokens. What is beyond is a slip, and no tensor holds it."""

Count = Annotated[int, Field(ge=1)]
Width = Annotated[int, Field(ge=1, le=MOST_WIDTH)]
Rows = Annotated[int, Field(ge=1, le=MOST_ROWS)]
Layers = Annotated[int, Field(ge=1, le=10_000)]
Machines = Annotated[int, Field(ge=1, le=65_536)]
Degree = Annotated[int, Field(ge=1, le=65_536)] | Literal["auto"]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, pattern=r"^[^\x00]*$")]
"""Not empty; a zero byte ends a path for the operating system."""


class Section(BaseModel):
    """Strict and frozen: no unknown keys, no silent conversion between text, numbers and booleans."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True, protected_namespaces=()
    )


class Model(Section):
    """Which network. A preset gives every number; a key beside it replaces that number."""

    preset: Name | None = None
    """Published shape to start from; `msparallel ls --presets` lists them."""
    num_layers: Layers | None = None
    """Transformer layers."""
    hidden_size: Width | None = None
    """Width of the residual stream."""
    num_heads: Width | None = None
    """Query heads."""
    num_kv_heads: Width | None = None
    """Key and value heads (grouped-query attention). Left out: as many as num_heads."""
    head_dim: Width | None = None
    """Width of one head. Left out: hidden_size / num_heads."""
    ffn_size: Width | None = None
    """Hidden width of the feed-forward layer."""
    vocab_size: Rows | None = None
    """Tokens the tokenizer knows."""
    vocab_multiple: Width | None = None
    """The embedding's rows are padded to a multiple of this, so that model_parallel can cut them; never exported."""
    position: Literal["rope", "learned"] | None = None
    """Rotary positions, or a learned table (GPT-2)."""
    max_positions: Rows | None = None
    """Longest sequence that positions exist for."""
    rope_theta: Positive | None = None
    """Base of the rotary frequencies."""
    norm: Literal["rms", "layer"] | None = None
    """RMSNorm (Llama, Qwen) or LayerNorm (GPT-2)."""
    norm_eps: Positive | None = None
    """Added to the variance before the root."""
    activation: Literal["swiglu", "gelu"] | None = None
    """Feed-forward form: gated SiLU, or GELU in its tanh form."""
    qk_norm: bool | None = None
    """RMSNorm over each query and key head (Qwen3)."""
    attention_bias: bool | None = None
    """Bias on query, key and value projections (Qwen2, GPT-2)."""
    output_bias: bool | None = None
    """Bias on the attention output projection (GPT-2)."""
    ffn_bias: bool | None = None
    """Bias in the feed-forward layer (GPT-2)."""
    tie_embeddings: bool | None = None
    """LM head and token embedding are one matrix. Not with pipeline_stages > 1."""
    num_experts: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """Experts of each layer; 0 is a dense model."""
    experts_per_token: Width | None = None
    """Experts that each token visits."""
    expert_ffn_size: Width | None = None
    """Hidden width of one expert."""
    expert_capacity_factor: NotNegative | None = None
    """0: dropless. Otherwise an expert takes at most ceil(factor x seq_length x experts_per_token / num_experts)
    tokens of a sequence."""
    normalize_expert_weights: bool | None = None
    """The chosen experts' weights are scaled to sum to 1."""
    router_aux_loss: NotNegative | None = None
    """Weight of the load-balancing loss (per sequence, so that it does not depend on the strategy)."""
    init_std: Positive | None = None
    """Standard deviation of the initial weights."""
    attention: Literal["auto", "flash", "plain"] = "auto"
    """auto: flash attention on Ascend, the plain form on CPU."""


class Parallel(Section):
    """The strategy. data_parallel x context_parallel x model_parallel x pipeline_stages = devices."""

    mode: Literal["stand_alone", "data_parallel", "semi_auto_parallel", "auto_parallel", "hybrid_parallel"] = (
        "stand_alone"
    )
    """MindSpore's parallel_mode. stand_alone: one device. data_parallel: replicas, also on CPU. semi_auto_parallel: the
    blocks' strategies. auto_parallel: MindSpore searches. hybrid_parallel: only the trainer's own collectives."""
    data_parallel: Degree = 1
    """Replicas that see different samples; at most one degree of a recipe may be `auto`."""
    model_parallel: Degree = 1
    """Devices that share every matrix (tensor parallel)."""
    pipeline_stages: Degree = 1
    """Consecutive groups of layers, each on its own devices."""
    context_parallel: Degree = 1
    """Devices that share one sequence."""
    context_parallel_algo: Literal["all_gather", "ulysses"] | None = None
    """How keys and values meet the queries. Left out: all_gather."""
    sequence_parallel: bool = False
    """Between the tensor-parallel matrices tokens are cut over model_parallel too; saves activation memory."""
    expert_parallel: Annotated[int, Field(ge=1, le=10_000)] = 1
    """Experts are cut over this many of the data x context x model parallel devices of a stage."""
    vocab_parallel: bool = True
    """Embedding and LM head are cut along the vocabulary over model_parallel."""
    micro_batch_num: Width | None = None
    """Micro-batches of one step with a pipeline, gradient accumulation steps without. Left out: global_batch_size /
    (data_parallel x micro_batch_size)."""
    pipeline_schedule: Literal["gpipe", "1f1b"] | None = None
    """Order of micro-batches in the pipeline; gpipe with virtual_stages only. Left out: 1f1b."""
    virtual_stages: Layers = 1
    """Groups of layers per stage (interleaved pipeline)."""
    stage_layers: list[Layers] | None = None
    """Layers of each stage, first to last (stages x virtual_stages numbers). Left out: equal shares."""
    optimizer_shard: bool | Literal["level1", "level2", "level3"] = False
    """Weights and optimizer state cut over the devices that hold them alike (data_parallel x context_parallel). true is
    level1; level2 cuts gradients too, level3 also gathers weights again before the backward pass. MindSpore's level1
    is more than ZeRO-1: weights are cut as well."""
    optimizer_shard_size: Count | None = None
    """Devices over which the optimizer shard is cut. Left out: all that hold the same."""
    optimizer_shard_threshold_kib: Annotated[int, Field(ge=0)] | None = None
    """Parameters smaller than this stay whole. Left out: 64."""
    recompute: Literal["none", "selective", "full"] = "none"
    """Recompute in the backward pass: nothing, the attention core, or whole layers."""
    search_mode: Literal["sharding_propagation", "recursive_programming"] | None = None
    """How auto_parallel searches: recursive_programming finds every strategy; sharding_propagation extends the blocks'
    own strategies to operators that have none. Left out: recursive_programming."""
    comm_fusion: Literal["none", "auto"] | Count = "none"
    """Join small collectives into large ones: none, MindSpore's own choice, or a buffer size in MiB."""
    overlap_gradients: bool = False
    """Reduce gradients while the backward pass still runs (Ascend)."""
    strategy_save_file: Name | None = None
    """MindSpore writes the strategies of the weights here. Left out: nowhere."""
    strategy_load_file: Name | None = None
    """MindSpore takes strategies from here instead of searching. Left out: it searches."""


class Optimizer(Section):
    """AdamW with decoupled decay, warm-up, then a schedule."""

    learning_rate: Positive = 3e-4
    """Peak learning rate."""
    min_learning_rate: NotNegative = 0.0
    """Learning rate at the last step of the cosine."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Shape after warm-up."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of linear rise from 0."""
    weight_decay: NotNegative = 0.1
    """Decay of matrices; norms and biases have none."""
    beta1: Fraction = 0.9
    """Decay of the first moment."""
    beta2: Fraction = 0.95
    """Decay of the second moment."""
    eps: Positive = 1e-8
    """Added to the root of the second moment."""
    clip_norm: NotNegative = 1.0
    """Largest global norm of the gradient; 0 is no clipping."""


class Data(Section):
    """Text and tokenizer."""

    corpus: Name = "python_stdlib"
    """`python_stdlib` (this machine's own Python sources), or a file or glob of plain text or JSON Lines."""
    text_field: Name | None = None
    """Field of a JSON line that holds the text. Left out: text."""
    tokenizer: Name = "bpe"
    """`bpe`: trained on the corpus. `byte`: 256 bytes and an end mark. Otherwise the path of a Hugging Face
    tokenizer.json."""
    eval_fraction: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    """Share of documents kept aside for evaluation."""
    cache_dir: Name = "output/cache"
    """Where tokenizer and token files are kept between runs."""


class Train(Section):
    """The training run. global_batch_size = data_parallel x micro_batch_size x micro_batch_num."""

    global_batch_size: Rows | None = None
    """Sequences of one optimizer step, over all devices. Left out: data_parallel x micro_batch_size x
    micro_batch_num."""
    micro_batch_size: Width | None = None
    """Sequences that one data-parallel replica takes at a time. Left out: global_batch_size / (data_parallel x
    micro_batch_num)."""
    seq_length: Rows = 1024
    """Tokens of a sequence."""
    steps: Count = 1000
    """Optimizer steps."""
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 1
    """Of weights, data order and samples."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Type of the matrix products; weights and optimizer stay float32."""
    loss_scale: Literal["dynamic"] | Count | None = None
    """float16 only: fixed factor, or raised and lowered by overflow. Left out: dynamic."""
    output_dir: Name = "output"
    """Logs, curve and checkpoints go to output_dir/RECIPE_NAME."""
    log_interval: Count = 1
    """Steps between lines of the log."""
    eval_interval: Count | None = None
    """Steps between evaluations. Left out: before the first and after the last step only."""
    eval_sequences: Count = 64
    """Sequences of one evaluation, the same ones each time and under every strategy."""
    checkpoint_interval: Count | None = None
    """Steps between checkpoints. Left out: after the last step only."""
    keep_checkpoints: Annotated[int, Field(ge=2)] = 2
    """Newest checkpoints that stay on disk; at least 2, so that a damaged newest one has a predecessor."""
    sample_tokens: Annotated[int, Field(ge=0)] = 64
    """Tokens of the text sample at the end; 0 is none."""
    sample_prompt: Name = "def "
    """Start of the text sample."""
    tensorboard: bool = False
    """Also write TensorBoard events (needs the `tensorboard` extra)."""


class Cluster(Section):
    """The machines. Left out: as many as the degrees ask for."""

    nodes: Machines | None = None
    """Machines. Left out: as many as the degrees fill."""
    devices_per_node: Machines | None = None
    """Devices of each machine that take part. Left out: devices / nodes."""
    hardware: Name = "cpu"
    """Profile in msparallel/hardware: cpu, atlas_800t_a2, atlas_900_a3 ..."""


class Serve(Section):
    """Serving."""

    weights: Name
    """Path of a checkpoint, or `random` to try the machinery without one."""
    host: Name = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=1, le=65535)] = 8000
    """Port to listen on."""
    max_concurrency: Count = 8
    """Requests in the batch at once; further ones wait in the queue."""
    max_length: Count = 4096
    """Prompt and answer together, in tokens."""
    max_waiting: Annotated[int, Field(ge=0, le=100_000)] = 64
    """Requests that may wait for a place in the batch; further ones are refused (429) and told when to come again."""
    wait_s: Positive = 60.0
    """Seconds after which a request that still waits is refused (503)."""
    request_s: Positive = 600.0
    """Seconds after which a request is ended, waiting and answer together (504, or an error at the end of a stream)."""
    drain_s: NotNegative = 120.0
    """Seconds that requests may take to end after SIGTERM or Ctrl-C; nothing new is taken meanwhile."""
    api_keys_file: Name | None = None
    """File with a key a line, of which a request must carry one (Authorization: Bearer KEY). Left out: the keys of the
    environment variable MSPARALLEL_API_KEYS, else none is asked for."""


class Supervise(Section):
    """How `msparallel supervise` keeps a run alive."""

    max_restarts: Annotated[int, Field(ge=0)] = 20
    """Restarts before it gives up, over the life of one `supervise`. The same failure at the same step with no new
    checkpoint in between ends it sooner, whatever is left."""
    hang_timeout_s: Positive = 600.0
    """Seconds without a new step on any rank, or with a rank stopped (state T), after which the run hangs; at least 10
    times the median step. 600 is three times sooner than HCCL's own limit (HCCL_EXEC_TIMEOUT, 1836)."""
    long_timeout_s: Positive = 3600.0
    """The same for start-up, compilation, evaluation and checkpoints, which take as long as many steps."""
    restart_delay_s: NotNegative = 10.0
    """Seconds between the end of one attempt and the next. A driver needs about 10 to give devices back."""
    on_node_fault: Literal["exclude", "stop"] = "exclude"
    """A node that is ill (alarm, temperature) or cannot be reached: exclude takes a spare host of hosts.txt in its
    place; stop ends the run and leaves that to a person."""
    node_wait_s: NotNegative = 600.0
    """Without a spare: seconds in which a node that cannot be reached may come back. A server starts in less."""
    max_temperature_c: Positive | None = None
    """Temperature of a device at which its node counts as ill. Left out: what npu-smi calls healthy is healthy."""
    min_free_disk_gib: NotNegative = 1.0
    """Less than this free under train.output_dir stops the run. A checkpoint is measured before it is written; this
    keeps room for logs and for others on the disk."""


class Sections(Section):
    """A whole recipe: `model`, and `train` or `serve` or both."""

    model: Model
    parallel: Parallel = Parallel()
    optimizer: Optimizer | None = None
    data: Data | None = None
    train: Train | None = None
    cluster: Cluster | None = None
    serve: Serve | None = None
    supervise: Supervise | None = None


SECTIONS: dict[str, type[Section]] = {
    "model": Model,
    "parallel": Parallel,
    "optimizer": Optimizer,
    "data": Data,
    "train": Train,
    "cluster": Cluster,
    "serve": Serve,
    "supervise": Supervise,
}
