"""What must be alike, free and reachable on the nodes before a job starts.

In: the answers of all nodes, and what this machine knows of the job. Out: every problem, with the node's line of the
host list; what is odd and no reason to stop.

>>> [str(problem) for problem in check(answers, job).problems]
['hosts.txt:2  node_1: 6d1f0a3b52c7\\n  The recipe differs from ...']
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msparallel.errors import Problem, short
from msparallel.launch.hosts import Layout
from msparallel.launch.preflight_ask import Answer
from msparallel.launch.preflight_facts import Facts
from msparallel.launch.preflight_needs import Needs

CLOCK_S = 5.0
"""Clocks further apart than this put the logs of a failed job in a wrong order."""
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Job:
    """What this machine knows.

    Attributes:
        recipe: as it was named; recipe_sha256: of its file here.
        msparallel, source: version of this package, digest of its files.
        needs_cann: whether the job runs on Ascend.
    """

    layout: Layout
    recipe: str
    recipe_sha256: str
    msparallel: str
    source: str
    needs: Needs
    needs_cann: bool


@dataclass(frozen=True, kw_only=True)
class Checked:
    problems: list[Problem]
    warnings: list[Problem]


def check(answers: Sequence[Answer], job: Job) -> Checked:
    """Every rule on every node."""
    problems = [problem for answer in answers for problem in _of_node(answer, answers, job)]
    problems += _of_names(answers, job)
    return Checked(problems=problems, warnings=[one for answer in answers for one in _warnings(answer, answers, job)])


def _problem(answer: Answer, job: Job, rule: str, value: object, message: str) -> Problem:
    return Problem(
        key=answer.host.name,
        value=value,
        rule=f"preflight_{rule}",
        message=message,
        file=job.layout.file,
        line=answer.host.line or None,
    )


def _of_node(answer: Answer, answers: Sequence[Answer], job: Job) -> Iterator[Problem]:
    facts = answer.facts
    if facts is None:
        yield _problem(answer, job, "reach", None, f"The node gave no answer: {answer.failure}")
        return
    for rule, value, message in (
        *_versions(facts, answers[0].facts, job),
        *_recipe(facts, answers[0].facts, job),
        *_folder(answer, facts, answers[0].facts, job),
        *_network(answer, facts, answers[0].facts, job),
        *_hardware(facts, job),
    ):
        yield _problem(answer, job, rule, value, message)


class _Found(NamedTuple):
    rule: str
    value: object
    message: str


def _versions(facts: Facts, first: Facts | None, job: Job) -> Iterator[_Found]:
    ours, theirs = f"{job.msparallel} ({job.source})", f"{facts.msparallel} ({facts.source})"
    if ours != theirs:
        yield _Found(
            "msparallel",
            theirs,
            f"This msparallel is not the one that launches, {ours}; in brackets the digest of its files. Install the "
            "same on all nodes, or keep it in the folder that they share and name its Python with --python PATH.",
        )
    if not facts.mindspore:
        yield _Found(
            "mindspore",
            None,
            "MindSpore is not installed for this Python. Install it there, or name another Python with --python PATH.",
        )
    elif first and first.mindspore and facts.mindspore != first.mindspore:
        yield _Found(
            "mindspore",
            facts.mindspore,
            f"MindSpore differs from node 0's {first.mindspore}; ranks of one job need the same. Install one of the "
            "two on both.",
        )
    if first and facts.python != first.python:
        yield _Found(
            "python", facts.python, f"Python differs from node 0's {first.python}. Use one Python on all nodes."
        )


def _recipe(facts: Facts, first: Facts | None, job: Job) -> Iterator[_Found]:
    if not facts.recipe_sha256:
        yield _Found("recipe", job.recipe, f"The recipe is not there.\n  {facts.recipe_problem}")
        return
    if facts.recipe_sha256 != job.recipe_sha256:
        yield _Found(
            "recipe",
            facts.recipe_sha256[:12],
            (
                f"The recipe {short(job.recipe, 200)} has another content here than where it was launched "
                f"({job.recipe_sha256[:12]}, the first digits of the SHA-256). Copy it there, or keep it in the folder "
                "that the nodes share."
            ),
        )
    if facts.recipe_problem:
        yield _Found("recipe", job.recipe, f"The recipe cannot be run on this node:\n  {facts.recipe_problem}")
    if facts.corpus_problem:
        yield _Found("corpus", None, f"The text to train on cannot be read: {facts.corpus_problem}")
    elif first and first.corpus and facts.corpus and facts.corpus != first.corpus:
        yield _Found(
            "corpus",
            facts.corpus,
            f"The files of data.corpus have other sizes than on node 0 ({first.corpus}, a digest of them). Ranks would "
            "train on different text: copy the files again.",
        )


def _folder(answer: Answer, facts: Facts, first: Facts | None, job: Job) -> Iterator[_Found]:
    if not facts.output_dir:
        return
    if facts.held:
        yield _Found(
            "run",
            facts.output_dir,
            f"A run of this recipe goes on in train.output_dir: {short(', '.join(facts.held))}. Wait for it, or set "
            "another train.output_dir.",
        )
    if facts.output_problem:
        yield _Found(
            "output_dir",
            facts.output_dir,
            f"train.output_dir cannot be used: {_sentence(facts.output_problem)} All nodes need one folder that they "
            "share: ranks write their part of a checkpoint there.",
        )
    elif answer.node_rank and first and first.marker and not facts.marker:
        yield _Found(
            "output_dir",
            facts.output_dir,
            f"train.output_dir is not the folder of node 0: a file that node 0 wrote to {first.output_dir} is not seen "
            "here. Use a folder that all nodes mount, for example train.output_dir=/shared/output.",
        )
    elif facts.free_bytes is not None and facts.free_bytes < job.needs.checkpoint_bytes and not answer.node_rank:
        yield _Found(
            "disk",
            f"{facts.free_bytes / GIB:.1f} GiB",
            f"Less is free in {facts.output_dir} than one checkpoint takes, about "
            f"{job.needs.checkpoint_bytes / GIB:.1f} GiB. Free some, or set train.output_dir to another place.",
        )


def _network(answer: Answer, facts: Facts, first: Facts | None, job: Job) -> Iterator[_Found]:
    wanted, port = job.layout.master_addr, job.layout.master_port
    if not answer.node_rank:
        if len(job.layout.nodes) > 1 and _loopback(facts):
            yield _Found(
                "master",
                wanted,
                f"On this node the name means {facts.addresses[0]} (see its /etc/hosts), where no other node can reach "
                f"it. Write its address beside the name: {answer.host.name} ADDRESS",
            )
        elif len(job.layout.nodes) > 1 and facts.addresses and ":" in facts.addresses[0]:
            yield _Found(
                "master",
                wanted,
                f"The name means the IPv6 address {facts.addresses[0]}; workers would need MS_WORKER_IP, which is not "
                f"set here. Write the IPv4 address beside it: {answer.host.name} ADDRESS",
            )
        elif facts.addresses and not facts.has_master:
            yield _Found(
                "master",
                wanted,
                f"{facts.addresses[0]} is no address of this node, and node 0 must have the master's. `ip address` "
                "there tells its own; put the node that has it first, or correct the line.",
            )
        elif facts.master_problem:
            yield _Found(
                "port",
                port,
                f"{_sentence(facts.master_problem)} Choose another port, for example --master-port {port + 1}.",
            )
        return
    if facts.has_master and facts.addresses:
        yield _Found(
            "master",
            wanted,
            f"{facts.addresses[0]} is an address of this node too; msrun would start a second scheduler here. "
            "Addresses must be different on all nodes.",
        )
    elif first and _loopback(first):
        return  # told of node 0
    elif first and first.addresses and facts.addresses and facts.addresses[0] not in first.addresses:
        yield _Found(
            "master",
            wanted,
            f"The name means {facts.addresses[0]} here and {first.addresses[0]} on node 0. Write node 0's address "
            "beside its name.",
        )
    elif facts.master_problem and first and first.has_master and not first.master_problem:
        yield _Found(
            "connect",
            f"{wanted}:{port}",
            f"{_sentence(facts.master_problem)} Node 0 listened there at that moment: look at routes and firewalls "
            "between the two; MindSpore needs this port, and others between all nodes.",
        )


def _sentence(words: str) -> str:
    """What a node said, with one full stop at its end."""
    return f"{words.rstrip().rstrip('.')}."


def _loopback(facts: Facts) -> bool:
    return bool(facts.addresses) and facts.addresses[0].startswith(("127.", "::1"))


def _hardware(facts: Facts, job: Job) -> Iterator[_Found]:
    if facts.devices_problem:
        words = f"The devices cannot be used for this job: {_sentence(facts.devices_problem)}"
        yield _Found("devices", facts.devices, words)
    needed = job.needs.memory_bytes
    if facts.memory_bytes is not None and facts.memory_bytes < needed:
        yield _Found(
            "memory",
            f"{facts.memory_bytes / GIB:.1f} GiB",
            f"Less memory is available than weights, gradients and optimizer state of this node's workers take, "
            f"{needed / GIB:.1f} GiB. End what holds it, or use more nodes.",
        )


def _of_names(answers: Sequence[Answer], job: Job) -> list[Problem]:
    """Two nodes of one name."""
    named: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        if answer.facts:
            named[answer.facts.host_name].append(answer)
    return [
        _problem(
            answer,
            job,
            "host_name",
            name,
            f"{others[0].host.name} has this host name too. msrun's workers take nodes of one name for one node and "
            "count their devices through, so they open wrong ones. Give each node a name of its own: hostname "
            f"{answer.host.name}",
        )
        for name, others in named.items()
        for answer in others[1:]
    ]


def _warnings(answer: Answer, answers: Sequence[Answer], job: Job) -> Iterator[Problem]:
    facts, first = answer.facts, answers[0]
    if facts is None:
        return
    if first.facts and abs(answer.clock_s - first.clock_s) > CLOCK_S:
        yield _problem(answer, job, "clock", f"{answer.clock_s - first.clock_s:+.0f} s", (
            "The clock is that far from node 0's. The job runs, but its logs cannot be put in order, and `diagnose` "
            "may name a wrong cause: set the clocks with NTP."
        ))  # fmt: skip
    if job.needs_cann and not facts.cann:
        yield _problem(answer, job, "cann", None, (
            "Neither ASCEND_HOME_PATH nor ASCEND_TOOLKIT_HOME is set: CANN's set_env.sh was not read there. A login "
            "without a terminal reads no profile: source it here before the launch (its variables go along), or in the "
            "node's ~/.bashrc before the line that ends shells without a terminal."
        ))  # fmt: skip
    wanted = job.needs.checkpoint_bytes * job.needs.checkpoints
    if (
        not answer.node_rank
        and facts.free_bytes is not None
        and job.needs.checkpoint_bytes <= facts.free_bytes < wanted
    ):
        yield _problem(answer, job, "disk", f"{facts.free_bytes / GIB:.1f} GiB", (
            f"{job.needs.checkpoints} checkpoints are on the disk while one is written (train.keep_checkpoints + 1), "
            f"together about {wanted / GIB:.1f} GiB, more than is free in {facts.output_dir}."
        ))  # fmt: skip
