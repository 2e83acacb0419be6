"""Files of other frameworks, read and written: pure Python, no other framework is imported.

In: a MindFormers YAML, or a recipe. Out: a recipe, or a MindFormers YAML, and what could not be said in the other's
words. `read_mindformers` in `mindformers.py` is where to begin.
"""
