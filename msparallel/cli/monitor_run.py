"""What `monitor` was asked for, and the loop that does it.

In: Asked, the words of the command line. Out: exit code; snapshots on the terminal, as JSON, as metrics.

>>> monitor(Asked(run="output/quickstart", once=True))  # doctest: +SKIP
0
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from msparallel.cli.monitor_serve import address_of, serve
from msparallel.errors import UserError
from msparallel.launch.processes import interruptible
from msparallel.monitor.captures import Recording, read_recording
from msparallel.monitor.job import Expected, JobWatch
from msparallel.monitor.machines import Hosts, Machine, ThisMachine
from msparallel.monitor.marks import Limits
from msparallel.monitor.snapshot import Snapshot, Watch, to_json

INTERVAL_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Options as the command line has them."""

    run: str | None = None
    overrides: tuple[str, ...] = ()
    recorded: str | None = None
    hosts_file: str | None = None
    remote_shell: str | None = None
    interval_s: float | None = None
    once: bool = False
    temperature_limit_c: float = 85.0
    prometheus: str | None = None
    textfile: str | None = None
    as_json: bool = False


class _Replay:
    """A recording as if its moments came now."""

    def __init__(self, recording: Recording, moment: int):
        self.recording, self.moment = recording, moment

    def machines(self, now_s: float) -> tuple[Machine, ...]:
        return self.recording.machines(self.moment)

    @property
    def last(self) -> bool:
        return self.moment == len(self.recording.moments) - 1


def monitor(asked: Asked) -> int:
    """Do it; returns the exit code: 1 where the last look found neither a device nor a run."""
    with interruptible():  # npu-smi, or the ssh to it, ends with this process
        return _monitor(asked)


def _monitor(asked: Asked) -> int:
    _refuse_contradictions(asked)
    bound = address_of(asked.prometheus) if asked.prometheus is not None else None
    limits = Limits(temperature_c=asked.temperature_limit_c)
    job = _job(asked)
    devices = _devices(asked)
    watch = Watch(devices, job, limits)
    if job is None and isinstance(devices, ThisMachine):
        _refuse_nothing(watch.at(time.time()))

    seen: list[Snapshot] = []

    def take() -> Snapshot:
        seen[:] = [watch.at(time.time())]
        return seen[0]

    if asked.as_json:
        click.echo(json.dumps(to_json(take()), indent=2, allow_nan=False))
        return 0 if seen[0].watched else 1
    with _sigterm_ends():
        try:
            if bound or asked.textfile:
                serve(take, bound, Path(asked.textfile) if asked.textfile else None, once=asked.once,
                      interval_s=asked.interval_s or INTERVAL_S)  # fmt: skip
            else:
                _show(asked, devices, take)
        except KeyboardInterrupt:  # how a watch ends
            return 0
    return 1 if seen and not seen[0].watched else 0


def _show(asked: Asked, devices: object, take: Callable[[], Snapshot]) -> None:
    from msparallel.cli.monitor_live import is_live, live
    from msparallel.cli.monitor_text import line_of, plain

    replay = devices if isinstance(devices, _Replay) else None
    moments = len(replay.recording.moments) if replay else 0
    in_place = is_live(sys.stdout) and not asked.once
    if not in_place and (asked.once or asked.interval_s is None):
        click.echo(plain(take()), nl=False)
        return
    if replay:
        replay.moment = 0
    interval_s = asked.interval_s or INTERVAL_S

    def snapshots() -> Iterator[Snapshot]:
        """One each interval; of a recording alone as many as it has moments, and with a run the last one stays."""
        while True:
            began_s = time.monotonic()
            yield take()
            if replay and (moments == 1 or replay.last) and asked.run is None:
                return
            time.sleep(max(0.05, interval_s - (time.monotonic() - began_s)))
            if replay and not replay.last:
                replay.moment += 1

    if in_place:
        live(snapshots())
        return
    for snapshot in snapshots():
        click.echo(line_of(snapshot))
        sys.stdout.flush()


def _devices(asked: Asked) -> ThisMachine | Hosts | _Replay:
    if asked.recorded is not None:
        recording = read_recording(Path(asked.recorded))
        return _Replay(recording, len(recording.moments) - 1)
    if asked.hosts_file is not None:
        from msparallel.cluster.hosts import read_hosts
        from msparallel.launch.connect import remote_shell

        hosts = read_hosts(asked.hosts_file)
        return Hosts(hosts, remote_shell(asked.remote_shell, [host.address or host.name for host in hosts]))
    return ThisMachine()


def _job(asked: Asked) -> JobWatch | None:
    if asked.run is None:
        return None
    folder = Path(asked.run)
    if os.path.isdir(folder):  # Path.is_dir raises for a name that is too long
        if asked.overrides:
            raise UserError(f"{asked.run} is a folder; {asked.overrides[0]} changes a recipe. Leave it out.")
        return JobWatch(_run_folder(folder))
    from msparallel.plan import resolve
    from msparallel.recipe.load import load_recipe
    from msparallel.train.run import run_dir

    if os.sep in asked.run and not asked.run.endswith((".yaml", ".yml")) and not os.path.lexists(folder):
        raise UserError(f"{asked.run}\n  There is no such folder. A run that has not started yet has none: name its "
                        "recipe, for example msparallel monitor quickstart; the folder is watched as soon as it is "
                        "there.")  # fmt: skip
    plan = resolve(load_recipe(asked.run, asked.overrides))
    if plan.recipe.train is None:
        raise UserError(f"{plan.recipe.path}\n  The recipe has no `train` section: it has no run to watch.")
    expected = Expected(recipe=plan.recipe.name, mesh=str(plan.mesh), world_size=plan.world_size,
                        steps=plan.recipe.train.steps)  # fmt: skip
    return JobWatch(run_dir(plan), expected)


def _run_folder(folder: Path) -> Path:
    """The folder, if a run is in it."""
    parts = ("log.jsonl", "logs", "checkpoints")
    if any(os.path.exists(folder / part) for part in parts):
        return folder
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UserError(f"{folder}\n  It cannot be read: {error.strerror}.") from None
    runs = [name for name in names if os.path.exists(folder / name / "log.jsonl")][:5]
    near = f" Runs below it: {', '.join(str(folder / name) for name in runs)}." if runs else ""
    raise UserError(f"{folder}\n  No run is in this folder: log.jsonl, logs or checkpoints is expected.{near}")


def _refuse_contradictions(asked: Asked) -> None:
    if asked.recorded is not None and asked.hosts_file is not None:
        raise UserError("--from FILE|DIR and --hosts FILE: devices are told by a recording or asked now, not both.")
    if asked.remote_shell is not None and asked.hosts_file is None:
        raise UserError("--remote-shell reaches the hosts of --hosts FILE; there is no list of hosts.")
    if asked.as_json and (asked.prometheus is not None or asked.textfile is not None):
        raise UserError("--json is one look on stdout; --prometheus and --textfile go on. Give one of them.")
    if asked.textfile is not None and not asked.textfile.endswith(".prom"):
        raise UserError(f"--textfile {asked.textfile}\n  node_exporter reads files that end in .prom.")


def _refuse_nothing(snapshot: Snapshot) -> None:
    """No device and no run: there is nothing to watch, now or later."""
    if not snapshot.watched:
        from msparallel.errors import RunError

        told = snapshot.machines[0].error
        raise RunError(f"{told}\n  Name a run to watch (msparallel monitor quickstart), or a recording of npu-smi "
                       "(--from FILE).")  # fmt: skip


@contextmanager
def _sigterm_ends() -> Iterator[None]:
    """SIGTERM ends as Ctrl-C does, so that the terminal gets its cursor back."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
