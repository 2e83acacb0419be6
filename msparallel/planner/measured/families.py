"""What tables of measurements leave out about published models: vocabulary, blocks, what this planner does not know.

In: a model's name as somebody wrote it. Out: the Family with the facts of its public `config.json` on Hugging Face
(GPT-3, Turing and MT-NLG: their papers).

>>> family_of("chatglm3_tp1_pp2_legacy").name, family_of("LLaMA2 13B").vocab_size
('chatglm', 32000)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

MLA = "multi-head latent attention (MLA)"
STATE_SPACE = "state-space or linear attention layers"
SHARED_EXPERTS = "shared experts"
OTHER_LAYERS = "layers that are not alike"


@dataclass(frozen=True, kw_only=True)
class Family:
    """Attributes:
    name: models of one family are in one half (`half_of`).
    vocab_size: of the tokenizer, 0 where it differs from model to model.
    facts: fields of ModelShape that a table's columns do not have.
    alibi: positions are a bias on attention scores, kept as a table of heads x sequence x sequence.
    unknown: a feature that the planner has no formulas for; empty where there is none.
    """

    name: str
    vocab_size: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    alibi: bool = False
    unknown: str = ""


_GELU: dict[str, Any] = {"activation": "gelu", "norm": "layer", "attention_bias": True, "output_bias": True}
_GPT: dict[str, Any] = {**_GELU, "ffn_bias": True, "position": "learned", "tie_embeddings": True}
_BIAS: dict[str, Any] = {"attention_bias": True}
_TIED: dict[str, Any] = {"tie_embeddings": True}
_QWEN3: dict[str, Any] = {"qk_norm": True}
_PHI: dict[str, Any] = {**_BIAS, "norm": "layer", "output_bias": True}


def _experts(number: int, a_token: int, width: int = 0) -> dict[str, Any]:
    """A mixture of experts; a width of 0 is that of the feed-forward layer."""
    found = {"num_experts": number, "experts_per_token": a_token}
    return {**found, "expert_ffn_size": width} if width else found


_FAMILIES: tuple[tuple[str, Family], ...] = (
    (r"mamba|rwkv|jamba|qwen3 ?next|qwen3\.5", Family(name="state-space", unknown=STATE_SPACE)),
    (r"deepseek ?v[2-9]|deepseek[2-9]|kimi|minicpm ?3|glm ?5|longcat", Family(name="deepseek-mla", unknown=MLA)),
    (
        r"qwen2 ?moe|qwen2 57b|qwen1\.?5 moe|hun?yuan|huyuan|llama ?4|bailing|glm ?4\.?5",
        Family(name="moe-shared", unknown=SHARED_EXPERTS),
    ),
    (r"gpt ?oss|step ?3", Family(name="other", unknown=OTHER_LAYERS)),
    (r"deepseek.*coder|deepseek.*33b", Family(name="deepseek", vocab_size=32256)),
    (r"deepseek", Family(name="deepseek", vocab_size=102400)),
    (r"aquila", Family(name="aquila", vocab_size=100008)),
    (r"baichuan2.*13b", Family(name="baichuan", vocab_size=125696, alibi=True)),
    (r"baichuan.*13b", Family(name="baichuan", vocab_size=64000, alibi=True)),
    (r"baichuan2", Family(name="baichuan", vocab_size=125696)),
    (r"baichuan", Family(name="baichuan", vocab_size=64000)),
    (r"bloom", Family(name="bloom", vocab_size=250880, facts={**_GELU, "ffn_bias": True, **_TIED})),
    (r"glm4", Family(name="chatglm", vocab_size=151552, facts=_BIAS)),
    (r"glm[23]", Family(name="chatglm", vocab_size=65024, facts=_BIAS)),
    (r"internlm3", Family(name="internlm", vocab_size=128512)),
    (r"internlm2", Family(name="internlm", vocab_size=92544)),
    (r"internlm", Family(name="internlm", vocab_size=103168, facts={**_BIAS, "output_bias": True})),
    (r"codellama.*34b", Family(name="llama2", vocab_size=32000)),
    (r"codellama", Family(name="llama2", vocab_size=32016)),
    (r"llama ?3(?!\d)", Family(name="llama3", vocab_size=128256)),
    (r"llama ?2(?!\d)", Family(name="llama2", vocab_size=32000)),
    (r"llama", Family(name="llama", vocab_size=32000)),
    (r"mixtral", Family(name="mixtral", vocab_size=32000, facts=_experts(8, 2))),
    (r"mistral", Family(name="mistral", vocab_size=32000)),
    (r"gemma", Family(name="gemma", vocab_size=256000, facts=_TIED)),
    (r"grok", Family(name="grok", vocab_size=131072, facts=_experts(8, 2))),
    (r"phi ?3\.?5 ?moe", Family(name="phi", vocab_size=32064, facts={**_PHI, **_experts(16, 2)})),
    (r"minicpm", Family(name="minicpm", vocab_size=122753, facts=_TIED)),
    (r"seed ?oss", Family(name="seed-oss", vocab_size=155136, facts=_BIAS)),
    (r"yi\b", Family(name="yi", vocab_size=64000)),
    (r"qwen ?3 ?235b|qwen3.*235b", Family(name="qwen3", vocab_size=151936, facts={**_QWEN3, **_experts(128, 8, 1536)})),
    (r"qwen3.*30b", Family(name="qwen3", vocab_size=151936, facts={**_QWEN3, **_experts(128, 8, 768)})),
    (r"qwen3", Family(name="qwen3", vocab_size=151936, facts=_QWEN3)),
    (r"codeqwen", Family(name="qwen1.5", vocab_size=92416, facts=_BIAS)),
    (r"qwen2\.?5?.*\b(7|14|32|72)b", Family(name="qwen2", vocab_size=152064, facts=_BIAS)),
    (r"qwen2", Family(name="qwen2", vocab_size=151936, facts=_BIAS)),
    (r"qwen1\.?5.*\b(32|72|110)b", Family(name="qwen1.5", vocab_size=152064, facts=_BIAS)),
    (r"qwen1\.?5", Family(name="qwen1.5", vocab_size=151936, facts=_BIAS)),
    (r"qwen.*72b", Family(name="qwen", vocab_size=152064, facts=_BIAS)),
    (r"qwen", Family(name="qwen", vocab_size=151936, facts=_BIAS)),
    (r"gpt ?3|turing|mt ?nlg|\bgpt\b", Family(name="gpt", vocab_size=51200, facts=_GPT)),
    (r"gpt ?2", Family(name="gpt", vocab_size=50257, facts=_GPT)),
)
"""Pattern of a name in small letters, words parted by one space -> what it is; the first that is found counts."""


def half_of(family: str) -> Literal["first", "second"]:
    """Half of the model families: only rows of the first decide how a software is read, those of the second judge. In
    the first are names whose first letter has an even place in the alphabet: baichuan, deepseek, llama, but not qwen.
    """
    return "first" if (ord(family[0]) - ord("a")) % 2 == 1 else "second"


def family_of(model: str) -> Family:
    """The family of a model's name; one of its own, without facts, where the table has none."""
    name = re.sub(r"[^a-z0-9.]+", " ", model.lower()).strip()
    found = next((family for pattern, family in _FAMILIES if re.search(pattern, name)), None)
    return found or Family(name=(name.split() or ["unnamed"])[0])
