"""Writes the tables of docs/mindformers.md and its Chinese page: what `import` and `dryrun` made of the YAMLs of
MindFormers' wheel.

In: the folder `configs` of an installed MindFormers 1.9.0 (its wheel has it beside the package). Out: a row for each
training YAML, between the markers of both pages; tests/interop/test_mindformers_wheel.py holds them up to date.
With --dryrun, where MindFormers and MindSpore are installed, the dry runs are made anew first (half an hour); what they
gave is kept in docs/mindformers_dryrun.json.

    python docs/make_mindformers_table.py SITE_PACKAGES/configs [--dryrun]
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from msparallel.compile.dryrun import dry_run
from msparallel.compile.mindformers_job import mindformers_job
from msparallel.errors import RecipeError, UserError
from msparallel.interop.import_mindformers import Imported, import_mindformers
from msparallel.interop.mindformers import read_mindformers
from msparallel.interop.mindformers_keys import KINDS
from msparallel.interop.model_names import load_model_config, preset_config
from msparallel.plan import resolve

PAGES = {"en": Path(__file__).with_name("mindformers.md"), "zh": Path(__file__).with_name("mindformers.zh-CN.md")}
DRY_RUNS = Path(__file__).with_name("mindformers_dryrun.json")
MARKERS = {"import": ("<!-- table: begin -->\n", "<!-- table: end -->\n"),
           "dryrun": ("<!-- dryrun: begin -->\n", "<!-- dryrun: end -->\n")}  # fmt: skip
NAMES = ("pretrain_", "finetune_", "llm_", "run_general")
"""How training YAMLs of the wheel begin; the others generate text or convert weights."""
WORDS = {
    "en": {
        "head": ("file under `configs/`", "`import` gives", "devices", *KINDS),
        "carried": "a recipe", "given": "a recipe, with `--model-config {}`",
        "architecture": "architecture: {}", "legacy": "legacy models", "no_shape": "no shape",
    },
    "zh": {
        "head": ("`configs/` 下的文件", "`import` 的结果", "设备", *KINDS),
        "carried": "配方", "given": "配方，需 `--model-config {}`",
        "architecture": "结构：{}", "legacy": "旧版模型", "no_shape": "没有模型尺寸",
    },
}  # fmt: skip
BLOCKS = {
    "multi-latent attention": "MLA", "shared experts": "共享专家", "multi-token prediction": "多 token 预测",
    "dense layers before the first with experts": "首个专家层之前的稠密层",
}  # fmt: skip
"""Blocks that we do not have -> in Chinese."""


def outcome(path: Path) -> tuple[str, str, Imported | None]:
    """What `import` gave: a word of WORDS, its detail, and the result. A file without a shape gets a preset."""
    preset = ""
    try:
        return "carried", "", import_mindformers(path)
    except RecipeError as error:
        problem = error.problems[0]
    if problem.rule == "no_shape":
        preset = "qwen3_30b_a3b" if "moe" in path.name else "qwen3_32b"
        return "given", preset, import_mindformers(path, preset_config(preset))
    detail = problem.message.partition(" needs ")[2].partition(";")[0] if problem.rule == "architecture" else ""
    return problem.rule, detail, None


def training_files(folder: Path) -> list[Path]:
    """The YAMLs that train."""
    return [path for path in sorted(folder.rglob("*.yaml")) if path.name.startswith(NAMES)]


def table(folder: Path, language: str) -> str:
    """The whole table in one language."""
    words = WORDS[language]
    lines = ["| " + " | ".join(words["head"]) + " |", "|---" * len(words["head"]) + "|"]
    for path in training_files(folder):
        word, detail, result = outcome(path)
        if language == "zh":
            for english, chinese in BLOCKS.items():
                detail = detail.replace(english, chinese)
            detail = detail.replace(", ", "、").replace(" and ", "、")
        cells = [f"`{path.relative_to(folder).as_posix()}`", words[word].format(detail)]
        if result is None:
            cells += [""] * (1 + len(KINDS))
        else:
            counts = [sum(item.kind == kind for item in result.not_carried) for kind in KINDS]
            cells += [str(resolve(result.recipe).mesh), *map(str, counts)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def with_table(page: str, text: str, kind: str = "import") -> str:
    """A page's text with a table between its markers replaced."""
    begin, end = MARKERS[kind]
    before, _, rest = page.partition(begin)
    return before + begin + text + end + rest.partition(end)[2]


DRY_WORDS = {
    "en": {
        "head": ("file under `configs/`", "`dryrun` compiled", "with `--model-config`", "layers compiled", "s a rank",
                 "GiB a rank", "weights a device, GiB"),
        "all": "all {}", "few": "{} and {} of {}", "deepseek": "DeepSeek-V3's config.json",
    },
    "zh": {
        "head": ("`configs/` 下的文件", "`dryrun` 编译了", "`--model-config`", "编译的层数", "每个 rank 的秒数",
                 "每个 rank 的 GiB", "每个设备的权重，GiB"),
        "all": "全部 {}", "few": "{} 与 {}，共 {}", "deepseek": "DeepSeek-V3 的 config.json",
    },
}  # fmt: skip
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 129280, "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_nextn_predict_layers": 1,
    "num_attention_heads": 128, "num_key_value_heads": 128, "n_shared_experts": 1, "n_routed_experts": 256,
    "routed_scaling_factor": 2.5, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "topk_method": "noaux_tc", "n_group": 8, "topk_group": 4,
    "num_experts_per_tok": 8, "moe_layer_freq": 1, "first_k_dense_replace": 3, "norm_topk_prob": True,
    "scoring_func": "sigmoid", "hidden_act": "silu", "max_position_embeddings": 163840, "initializer_range": 0.02,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 10000, "attention_bias": False,
    "attention_dropout": 0.0, "bos_token_id": 0, "eos_token_id": 1,
    "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                     "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
}  # fmt: skip
"""The published numbers of DeepSeek-V3."""


def dry_runs(folder: Path) -> dict[str, Any]:
    """The document of DRY_RUNS: the first and the last stage of every training YAML."""
    files = {}
    with tempfile.TemporaryDirectory() as place:
        deepseek = Path(place) / "config.json"
        deepseek.write_text(json.dumps(DEEPSEEK_V3), encoding="utf-8")
        for path in training_files(folder):
            name = path.relative_to(folder).as_posix()
            files[name] = _dried(path, str(deepseek))
            print(name, files[name], flush=True)
    return {
        "mindformers": version("mindformers"), "mindspore": version("mindspore"), "date": date.today().isoformat(),
        "files": files,
    }  # fmt: skip


def _dried(path: Path, deepseek: str) -> dict[str, Any]:
    """What a dry run gave: numbers, or `refused` with the rule or the message."""
    given = None
    if read_mindformers(path).absent.get("pretrained_model_dir"):
        preset = "qwen3_30b_a3b" if "moe" in path.name else "qwen3_32b"
        given = deepseek if "deepseek" in path.name else preset
    told = {"given": "deepseek" if given == deepseek else given}
    try:
        job = mindformers_job(read_mindformers(path, load_model_config(given) if given else None), "auto", given)
        stages = job.stage_ranks()
        done = dry_run(job, sorted({stages[0], stages[-1]}))
    except RecipeError as error:
        return told | {"refused": error.problems[0].rule, "message": error.problems[0].message}
    except UserError as error:
        return told | {"refused": "failed", "message": str(error)}
    return told | {
        "mesh": str(job.mesh),
        "layers": [sum(variant.stage_layers) for variant in job.variants],
        "model_layers": sum(job.stage_layers),
        "ranks": [report.rank for report in done.ranks],
        "seconds": [round(report.build_s + report.compile_s, 1) for report in done.ranks],
        "process_peak_bytes": [report.process_peak_bytes for report in done.ranks],
        "weights_bytes": [report.weights_bytes for report in done.ranks],
    }


def dry_table(language: str) -> str:
    """The table of dry runs in one language, from DRY_RUNS."""
    words = DRY_WORDS[language]
    lines = ["| " + " | ".join(words["head"]) + " |", "|---" * len(words["head"]) + "|"]
    for name, told in json.loads(DRY_RUNS.read_text(encoding="utf-8"))["files"].items():
        given = told["given"]
        shown = words["deepseek"] if given == "deepseek" else f"`{given}`" if given else ""
        if "refused" in told:
            cells = [REFUSED[language].get(told["refused"], told["refused"]), shown, "", "", "", ""]
        else:
            layers = (*told["layers"], told["model_layers"])
            cells = [
                f"{told['mesh']}, rank {', '.join(map(str, told['ranks']))}", shown,
                words["few"].format(*layers) if len(layers) == 3 else words["all"].format(layers[0]),
                f"{max(told['seconds']):.0f}", f"{max(told['process_peak_bytes']) / 2**30:.1f}",
                ", ".join(f"{size / 2**30:.2f}" for size in told["weights_bytes"]),
            ]  # fmt: skip
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


REFUSED = {
    "en": {
        "legacy": "legacy models", "offset": "`offset` leaves layers over; MindFormers refuses it",
        "strategy_of_another_shape": "cuts 5 inputs (`create_attention_mask`), `input_columns` names 4",
    },
    "zh": {
        "legacy": "旧版模型", "offset": "`offset` 分不完所有层，MindFormers 会拒绝",
        "strategy_of_another_shape": "按 5 个输入切分（`create_attention_mask`），`input_columns` 只有 4 个",
    },
}  # fmt: skip


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--dryrun"]
    if len(words) != 1 or not Path(words[0]).is_dir():
        sys.exit("Name the folder `configs` of an installed MindFormers.")
    if "--dryrun" in sys.argv:
        DRY_RUNS.write_text(json.dumps(dry_runs(Path(words[0])), indent=1) + "\n", encoding="utf-8")
    for language, page in PAGES.items():
        text = with_table(page.read_text(encoding="utf-8"), table(Path(words[0]), language))
        page.write_text(with_table(text, dry_table(language), "dryrun"), encoding="utf-8")
        print(f"wrote {page}")
