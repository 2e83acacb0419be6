"""Writes the table of docs/mindformers.md and its Chinese page: what `import` made of the YAMLs of MindFormers' wheel.

In: the folder `configs` of an installed MindFormers 1.9.0 (its wheel has it beside the package). Out: a row for each
training YAML, between the markers of both pages; tests/interop/test_mindformers_wheel.py holds them up to date.

    python docs/make_mindformers_table.py SITE_PACKAGES/configs
"""

from __future__ import annotations

import sys
from pathlib import Path

from msparallel.errors import RecipeError
from msparallel.interop.import_mindformers import Imported, import_mindformers
from msparallel.interop.mindformers_keys import KINDS
from msparallel.interop.model_names import preset_config
from msparallel.plan import resolve

PAGES = {"en": Path(__file__).with_name("mindformers.md"), "zh": Path(__file__).with_name("mindformers.zh-CN.md")}
BEGIN, END = "<!-- table: begin -->\n", "<!-- table: end -->\n"
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


def table(folder: Path, language: str) -> str:
    """The whole table in one language."""
    words = WORDS[language]
    lines = ["| " + " | ".join(words["head"]) + " |", "|---" * len(words["head"]) + "|"]
    for path in sorted(folder.rglob("*.yaml")):
        if not path.name.startswith(NAMES):
            continue
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


def with_table(page: str, text: str) -> str:
    """A page's text with the table between its markers replaced."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + text + END + rest.partition(END)[2]


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("Name the folder `configs` of an installed MindFormers.")
    for language, page in PAGES.items():
        page.write_text(with_table(page.read_text(encoding="utf-8"), table(Path(sys.argv[1]), language)),
                        encoding="utf-8")  # fmt: skip
        print(f"wrote {page}")
