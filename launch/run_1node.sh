#!/usr/bin/env bash
# Trains a recipe on the devices of this machine with MindSpore's msrun; the command is shown first.
#   bash launch/run_1node.sh RECIPE [section.key=value ...]
#   bash launch/run_1node.sh gpt_tiny_dp2_cpu
# `msparallel run RECIPE` does the same and watches the workers: it names the first one that fails.
set -euo pipefail
msparallel="$(command -v msparallel)" || { echo "msparallel is not on the PATH: activate its environment first." >&2; exit 2; }
export PATH="$(dirname "$msparallel"):$PATH"  # msrun starts the `python` that it finds there
command="$(msparallel run "$@" --print-command)"
echo "$command"
eval "exec $command"
