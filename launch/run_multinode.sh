#!/usr/bin/env bash
# This machine's part of a recipe that runs on several machines; the msrun command is shown first.
# Start it on every machine, each with its own number; machine 0 is the one at ADDRESS.
#   bash launch/run_multinode.sh NODE_RANK ADDRESS PORT RECIPE [section.key=value ...]
#   bash launch/run_multinode.sh 3 10.0.0.1 8118 llama2_13b_dp8_tp4_pp2
# All machines need the same recipe, and an output_dir that they share: ranks write their slices of a checkpoint there.
# This is the way without ssh. `msparallel launch RECIPE --hosts FILE` starts all machines from one, and asks them first.
# On a processor the workers share its cores, unless OMP_NUM_THREADS says how many each takes.
set -euo pipefail
if [ "$#" -lt 4 ]; then
    sed -n '2,8s/^# //p' "$0" >&2
    exit 2
fi
rank="$1" address="$2" port="$3"
shift 3
msparallel="$(command -v msparallel)" || { echo "msparallel is not on the PATH: activate its environment first." >&2; exit 2; }
export PATH="$(dirname "$msparallel"):$PATH"  # msrun starts the `python` that it finds there
command="$(msparallel run "$@" --node-rank "$rank" --master-addr "$address" --master-port "$port" --print-command)"
case "$command" in
    *" --bind_core "*) ;;  # devices: msrun gives each worker the cores near its device
    *) workers="$(sed 's/.*--local_worker_num \([0-9]*\) .*/\1/' <<<"$command")"
       export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(( $(nproc) < workers ? 1 : $(nproc) / workers ))}" ;;
esac
echo "$command"
eval "exec $command"
