#!/usr/bin/env bash
# Trains a recipe on the devices of this machine with MindSpore's msrun; the command is shown first.
#   bash launch/run_1node.sh RECIPE [section.key=value ...]
#   bash launch/run_1node.sh gpt_tiny_dp2_cpu
# `msparallel run RECIPE` does the same and watches the workers: it names the first one that fails.
# On a processor the workers share its cores, unless OMP_NUM_THREADS says how many each takes.
set -euo pipefail
msparallel="$(command -v msparallel)" || { echo "msparallel is not on the PATH: activate its environment first." >&2; exit 2; }
export PATH="$(dirname "$msparallel"):$PATH"  # msrun starts the `python` that it finds there
command="$(msparallel run "$@" --print-command)"
case "$command" in
    *" --bind_core "*) ;;  # devices: msrun gives each worker the cores near its device
    *) workers="$(sed 's/.*--local_worker_num \([0-9]*\) .*/\1/' <<<"$command")"
       export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(( $(nproc) < workers ? 1 : $(nproc) / workers ))}" ;;
esac
echo "$command"
eval "exec $command"
