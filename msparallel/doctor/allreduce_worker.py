"""One process of the collective rung: `python -m msparallel.doctor.allreduce_worker FOLDER TARGET ELEMENTS`.

In: MindSpore's variables MS_ROLE and RANK_ID (msrun sets them). Out: FOLDER/rank_N.json: what this rank got of an
AllReduce in which rank r gives r + 1 in every element, or its error. Imports MindSpore.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from msparallel.launch.processes import die_with_parent


def main(arguments: list[str]) -> int:
    """Exit code 0 where the sum came back."""
    os.environ.setdefault("GLOG_v", "3")
    die_with_parent()
    folder, target, elements = Path(arguments[0]), arguments[1], int(arguments[2])
    import mindspore as ms
    from mindspore import Tensor, nn, ops
    from mindspore.communication import get_group_size, get_rank, init

    if os.environ.get("MS_ROLE") == "MS_SCHED":
        init()  # serves the workers until they have gone
        return 0
    told = folder / f"rank_{os.environ['RANK_ID']}.json"
    try:
        ms.set_context(mode=ms.GRAPH_MODE)
        ms.set_device(target, *([int(os.environ["RANK_ID"])] if target == "Ascend" else []))
        init()
        rank, size = get_rank(), get_group_size()

        class Sum(nn.Cell):
            """One AllReduce over all ranks."""

            def __init__(self) -> None:
                super().__init__()
                self.all_reduce = ops.AllReduce()

            def construct(self, values):
                return self.all_reduce(values)

        network = Sum()
        given = Tensor([float(rank + 1)] * elements, ms.float32)
        network(given).asnumpy()  # compiles, and makes the links
        started = time.monotonic()
        got = network(given).asnumpy()
        seconds = time.monotonic() - started
        answer = {"rank": rank, "size": size, "least": float(got.min()), "most": float(got.max()), "seconds": seconds}
    except Exception as error:  # this process's last word: who started it reads it
        told.write_text(json.dumps({"error": f"{type(error).__name__}: {error}"[:4000]}), encoding="utf-8")
        raise
    told.write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
