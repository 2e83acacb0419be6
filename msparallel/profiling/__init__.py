"""What a profiler measured, judged: who was slow, what the step's time went to, what would make it faster.

In: a folder of text that msprof, MindSpore's profiler, torch_npu's profiler, hccl_test and hccn_tool write. Out: a
Profile: numbers, and findings in order of what they could gain. Nothing here imports MindSpore or NumPy, and no file is
held in memory whole.
"""
