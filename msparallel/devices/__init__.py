"""Ascend devices of a machine as their tools tell them: npu-smi and hccn_tool."""
