"""Recipes in YAML that train and serve large models on Ascend clusters with MindSpore."""

__version__ = "0.1.0"
