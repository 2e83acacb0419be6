"""A job's numbers and keys under one set of names, whether a recipe or a MindFormers YAML states them.

In: a Request. Out: `Terms`: sizes of the network, degrees, the key that states each, and problems at its line.

>>> terms = read_terms(request)
>>> terms.degrees, terms.key("tp"), terms.names_of(130)
({'pp': 1, 'dp': 2, 'cp': 1, 'tp': 4}, 'parallel.model_parallel', [('ffn_size', 'ffn_size 130')])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from msparallel.compile.request import Request
from msparallel.errors import Problem
from msparallel.interop.mindformers import MindFormersConfig, read_mindformers
from msparallel.interop.model_names import load_model_config
from msparallel.mesh import AXES
from msparallel.recipe import derive
from msparallel.recipe.load import load_recipe
from msparallel.recipe.override import format_override, with_possible_values
from msparallel.recipe.recipe import Recipe
from msparallel.recipe.rules import find_problems
from msparallel.recipe.rules.finding import Changes, divisors, nearby, with_batch

KEYS: Mapping[str, tuple[str, str]] = {
    "dp": ("parallel.data_parallel", "parallel_config.data_parallel"),
    "tp": ("parallel.model_parallel", "parallel_config.model_parallel"),
    "pp": ("parallel.pipeline_stages", "parallel_config.pipeline_stage"),
    "cp": ("parallel.context_parallel", "parallel_config.context_parallel"),
    "ep": ("parallel.expert_parallel", "parallel_config.expert_parallel"),
    "micro_batch_num": ("parallel.micro_batch_num", "parallel_config.micro_batch_num"),
    "mode": ("parallel.mode", "parallel.parallel_mode"),
    "search_mode": ("parallel.search_mode", "parallel.search_mode"),
    "optimizer_shard": ("parallel.optimizer_shard", "parallel.parallel_optimizer_config.optimizer_level"),
    "optimizer_shard_size": (
        "parallel.optimizer_shard_size",
        "parallel.parallel_optimizer_config.optimizer_weight_shard_size",
    ),
    "stage_layers": ("parallel.stage_layers", "model.model_config.offset"),
    "virtual_stages": ("parallel.virtual_stages", "model.model_config.pp_interleave_num"),
    "strategy_load_file": ("parallel.strategy_load_file", "parallel.strategy_ckpt_load_file"),
    "dataset_strategy": ("parallel.data_parallel", "parallel.dataset_strategy"),
    "attention": ("model.attention", "model.model_config.use_flash_attention"),
    "dtype": ("train.dtype", "model.model_config.compute_dtype"),
    "num_layers": ("model.num_layers", "model.model_config.num_hidden_layers"),
    "hidden_size": ("model.hidden_size", "model.model_config.hidden_size"),
    "num_heads": ("model.num_heads", "model.model_config.num_attention_heads"),
    "num_kv_heads": ("model.num_kv_heads", "model.model_config.num_key_value_heads"),
    "head_dim": ("model.head_dim", "model.model_config.head_dim"),
    "ffn_size": ("model.ffn_size", "model.model_config.intermediate_size"),
    "expert_ffn_size": ("model.expert_ffn_size", "model.model_config.moe_intermediate_size"),
    "vocab_size": ("model.vocab_size", "model.model_config.vocab_size"),
    "num_experts": ("model.num_experts", "model.model_config.num_experts"),
    "seq_length": ("train.seq_length", "model.model_config.seq_length"),
    "micro_batch_size": ("train.micro_batch_size", "runner_config.batch_size"),
}
"""Name -> key of a recipe, key of a MindFormers YAML."""
_SIZES = ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "expert_ffn_size", "num_experts")
_MOST_TRIES = 200


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Attributes:
    sizes: name -> number of the network or batch, as far as the file says.
    degrees: axis -> degree.
    recipe, config: what the file was read as; one of the two is None.
    """

    sizes: Mapping[str, int]
    degrees: Mapping[str, int]
    recipe: Recipe | None = None
    config: MindFormersConfig | None = None

    @property
    def devices(self) -> int:
        return math.prod(self.degrees[axis] for axis in AXES)

    def key(self, name: str) -> str:
        """Dotted key under which the file states what `name` means; a key of the file's own stays what it is."""
        return KEYS[name][0 if self.recipe else 1] if name in KEYS else name

    def word(self, name: str) -> str:
        """The key's last part, with its value where it is a number."""
        value = self.degrees.get(name, self.sizes.get(name))
        last = self.key(name).rpartition(".")[2]
        return last if value is None else f"{last} {value}"

    def names_of(self, number: int) -> list[tuple[str, str]]:
        """(name, arithmetic) of every size that is this number; the name is the one to change."""
        sizes = self.sizes
        found = [(name, self.word(name)) for name in _SIZES if sizes.get(name) == number]
        for heads in ("num_heads", "num_kv_heads"):
            if heads in sizes and "head_dim" in sizes and sizes[heads] * sizes["head_dim"] == number:
                found.append((heads, f"{self.word(heads)} x {self.word('head_dim')}"))
            if sizes.get(heads) == number * self.degrees["tp"] > number:
                found.append((heads, f"{self.word(heads)} / {self.word('tp')} = {number}"))
        if sizes.get("vocab_rows") == number:
            found.append(("vocab_size", f"the vocabulary's {number} rows"))
        if sizes.get("seq_length") == number:
            found.append(("seq_length", self.word("seq_length")))
        for replicas, told in ((self.degrees["dp"], f"{self.word('dp')} x "), (1, "")):
            rows = sizes.get("micro_batch_size", 0) * replicas
            if number and number == rows * sizes.get("seq_length", 0):
                found.append(("seq_length", f"{told}{self.word('micro_batch_size')} x {self.word('seq_length')}"))
            elif number and number == rows:
                found.append(("micro_batch_size", f"{told}{self.word('micro_batch_size')}"))
        return found

    def degree_tries(self, axis: str, values: Iterable[int]) -> Iterator[Mapping[str, Any]]:
        """A degree set to each of the values: first with another degree that keeps the number of devices."""
        for value in values:
            for other in ("dp", "pp", "tp"):
                wanted, rest = divmod(self.degrees.get(axis, 1) * self.degrees[other], value)
                if other != axis and axis in AXES and not rest and wanted:
                    yield {axis: value, other: wanted}
            yield {axis: value}

    def dividing(self, axis: str, *numbers: int) -> Iterator[Mapping[str, Any]]:
        """`degree_tries` for the degrees that divide all numbers, nearest first."""
        legal = divisors(math.gcd(*numbers)) if numbers else []
        now = self.degrees.get(axis, 1)
        return self.degree_tries(axis, (value for value in nearby(now, legal) if value != now))

    def problem(
        self, name: str, rule: str, message: str, evidence: str, tries: Iterable[Mapping[str, Any]] = ()
    ) -> Problem:
        """A problem at the line of a key.

        Args:
            name: what to look at first, of KEYS, or a dotted key of the file's own.
            rule: name of the rule.
            message: sentences.
            evidence: a line of its own below them.
            tries: changes by name, nearest first. Of a recipe the first is suggested that passes every rule.
        """
        if self.recipe is not None:
            changes = self._working(tries)
            suggestion = " ".join(format_override(*pair) for pair in changes.items())
            return self.recipe.problem(rule, self.key(name), f"{message}\n  {evidence}", suggestion)
        assert self.config is not None, "a job is one of the two"
        first = next(iter(tries), None)
        if first is not None:
            told = " and ".join(f"{self.key(other)} to {value}" for other, value in first.items())
            message += f" Set {told}."
        return self.config.problem(rule, self.key(name), f"{message}\n  {evidence}")

    def _working(self, tries: Iterable[Mapping[str, Any]]) -> Changes:
        """The first change of the recipe that passes every rule, with a batch that comes out."""
        recipe = self.recipe
        assert recipe is not None, "MindFormers YAMLs have no rules"
        tried = 0
        for change in tries:
            for changes in with_batch(recipe, {self.key(name): value for name, value in change.items()}):
                tried += 1
                if tried > _MOST_TRIES:
                    return {}
                changed = with_possible_values(recipe, changes)
                if changed and changed.sections != recipe.sections and not find_problems(changed):
                    return {key: value for key, value in changes.items() if value is not None or recipe.stated(key)}
        return {}


def read_terms(request: Request) -> Terms:
    """The names of a request's job. Raises RecipeError where its file cannot be read any more."""
    if request.kind == "mindformers":
        given = load_model_config(request.model_config) if request.model_config else None
        return mindformers_terms(read_mindformers(request.source, given, request.overrides, request.values))
    return recipe_terms(load_recipe(request.source, request.overrides))


def recipe_terms(recipe: Recipe) -> Terms:
    """Terms of a recipe that passed every rule."""
    grid, batch = derive.mesh(recipe), derive.batch(recipe)
    assert grid is not None, "rules hold, so degrees follow"
    names = (*_SIZES, "num_layers", "vocab_size")
    sizes = {name: number for name in names if isinstance(number := derive.number(recipe, name), int) and number}
    multiple = derive.number(recipe, "vocab_multiple") or 1
    sizes["vocab_rows"] = -(-sizes["vocab_size"] // multiple) * multiple
    if recipe.train is not None:
        sizes["seq_length"] = recipe.train.seq_length
    if batch is not None:
        sizes |= {"micro_batch_size": batch[1], "micro_batch_num": batch[2]}
    degrees = {axis: getattr(grid, axis) for axis in AXES} | {"ep": recipe.parallel.expert_parallel}
    return Terms(sizes=sizes, degrees=degrees, recipe=recipe)


def mindformers_terms(config: MindFormersConfig) -> Terms:
    """Terms of a MindFormers YAML, with the sizes that it or its Hugging Face config states."""
    section = "model.model_config."
    own = {name: keys[1].removeprefix(section) for name, keys in KEYS.items() if keys[1].startswith(section)}
    stated = {name: config.model.get(key) for name, key in own.items()}
    sizes = {name: value for name, value in stated.items() if type(value) is int and value}
    if "vocab_size" in sizes:
        sizes["vocab_rows"] = sizes["vocab_size"]
    sizes |= {"seq_length": config.seq_length, "micro_batch_size": config.batch_size}
    sizes |= {"micro_batch_num": config.micro_batches, "virtual_stages": config.virtual_stages}
    degrees = {axis: getattr(config.mesh, axis) for axis in AXES} | {"ep": config.expert_parallel}
    return Terms(sizes=sizes, degrees=degrees, config=config)
