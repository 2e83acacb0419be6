"""A dry run as a person reads it at the terminal.

In: a DryRun. Out: text: a table of stages, parameters by what cuts them, collectives, operators by layer.
"""

from __future__ import annotations

from msparallel.compile.dryrun import DryRun


def job_text(job: DryRun) -> str:
    return "\n".join(f"rank {r.rank} stage {r.stage} weights {r.weights_bytes/2**30:.2f} GiB optimizer {r.optimizer_bytes/2**30:.2f} peak {r.peak.bytes/2**30:.2f} {r.compile_s:.1f} s" for r in job.ranks)
