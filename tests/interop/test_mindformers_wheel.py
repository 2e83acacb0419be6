"""The YAMLs that MindFormers' own wheel brings: each is a recipe, or refused with one message of a known kind.

Where Python does not find MindFormers, the environment variable MSPARALLEL_MINDFORMERS_CONFIGS names the folder.
After a change that is meant: MSPARALLEL_WRITE_DOCS=1, then read the diff of docs/mindformers.md.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
from interop.mindformers_files import VARIABLE, wheel_configs
from interop.test_import_mindformers import missed

from msparallel.errors import RecipeError
from msparallel.interop.import_mindformers import import_mindformers
from msparallel.interop.mindformers import is_mindformers, read_mindformers
from msparallel.plan import resolve

FOLDER = wheel_configs()
FILES = sorted(FOLDER.rglob("*.yaml")) if FOLDER else []
pytestmark = [
    pytest.mark.pure,
    pytest.mark.skipif(not FOLDER, reason=f"MindFormers is not installed here, and {VARIABLE} names no folder"),
]
CLASSES = ("not_training", "legacy", "architecture", "no_shape", "not_mindformers")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_a_recipe_or_one_message(path):
    try:
        result = import_mindformers(path)
    except RecipeError as error:
        assert len(error.problems) == 1 and error.problems[0].rule in CLASSES
        assert error.problems[0].line or error.problems[0].rule in ("not_mindformers", "legacy")
        return
    assert resolve(result.recipe).world_size > 1
    assert missed(result) == []
    assert not [item for item in result.not_carried if item.reason == "not a key that msparallel knows"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_but_weight_conversion_is_read(path):
    assert is_mindformers(path) != (path.parent.name == "convert_config")
    if is_mindformers(path):
        config = read_mindformers(path)
        assert config.data_parallel * config.model_parallel * config.pipeline_stages >= 1


def test_degrees_and_stages_of_two_files():
    qwen3 = read_mindformers(FOLDER / "qwen3" / "pretrain_qwen3_32b_4k.yaml")
    assert (qwen3.model_type, qwen3.model_parallel, qwen3.pipeline_stages, qwen3.micro_batches) == ("qwen3", 4, 4, 4)
    assert qwen3.stage_layers(64) == (15, 15, 17, 17)
    assert "context.ascend_config.parallel_speed_up_json_path" in qwen3.absent
    deepseek = read_mindformers(FOLDER / "deepseek3" / "pretrain_deepseek3_671b.yaml")
    assert (deepseek.model_type, deepseek.expert_parallel, deepseek.virtual_stages) == ("deepseek_v3", 32, 2)
    assert deepseek.stage_layers(61) == (4,) * 15 + (1,)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_table_in_the_docs_is_up_to_date(repo, language):
    file = repo / "docs" / "make_mindformers_table.py"
    spec = importlib.util.spec_from_file_location("make_mindformers_table", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = module.PAGES[language]
    for kind, table in (("import", module.table(FOLDER, language)), ("dryrun", module.dry_table(language))):
        if os.environ.get("MSPARALLEL_WRITE_DOCS"):
            page.write_text(module.with_table(page.read_text(encoding="utf-8"), table, kind), encoding="utf-8")
        assert table in page.read_text(encoding="utf-8"), "run: python docs/make_mindformers_table.py FOLDER"
