"""Text in, packed batches out: corpus -> tokenizer -> token stream -> sequences -> batches.

NumPy and `tokenizers` only, no MindSpore. Start at `dataset.open_dataset`.
"""
