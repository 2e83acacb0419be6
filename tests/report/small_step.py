"""Simulations by hand, of the shipped pp2 x dp2 x tp2 recipe: a step of few operators in MindSpore's 1F1B order, with
sums over tp in every layer, over dp at the end, a recomputed layer and an update. Cells can be named."""

from __future__ import annotations

from dataclasses import replace

from handmade_steps import FixedCost, StepLines

from msparallel.compile.graph import TensorType
from msparallel.mesh import Mesh
from msparallel.plan import Plan, resolve
from msparallel.recipe.load import load_recipe
from msparallel.simulate.cluster import Deadlock, Wait
from msparallel.simulate.compare import Difference
from msparallel.simulate.memory import MemoryCurve, memory_over_time
from msparallel.simulate.simulate import Simulation
from msparallel.simulate.timed import Timed
from msparallel.simulate.timeline import Timeline, simulate_step
from msparallel.simulate.walk import RankTimes, Span

RECIPE = "llama2_7b_dp2_tp2_pp2"
MESH = Mesh(pp=2, dp=2, tp=2)
COST = FixedCost(
    MatMul=4e-3, Exp=2e-4, MatMulGrad=7e-3, Send=1e-3, Receive=1e-3, AllReduce=1.5e-3, Adam=2e-3, Square=1e-4
)
GRADIENT, RECOMPUTED = "Gradients/Default/", "recompute_Default/"


class _Stage(StepLines):
    """One rank's operators; each that computes comes after the one before it."""

    def __init__(self, rank: int, layers: int, cell: str):
        super().__init__()
        self.rank, self.layers, self.cell = rank, layers, cell
        self.last: list[int] = []
        self.tp, self.dp = MESH.group_of(rank, "tp"), MESH.group_of(rank, "dp")

    def compute(self, primitive: str, micro: int | None, scope: str, *inputs: int) -> int:
        made = self.op(primitive, *inputs, after=self.last, micro=micro, scope=scope, type=BIG)
        self.last = [made]
        return made

    def forward(self, micro: int, *inputs: int, start: str = "Default/") -> int:
        made = list(inputs)
        for layer in range(self.layers):
            scope = f"{start}network-Net/layers-CellList/{layer}-Layer/{self.cell}"
            product = self.compute("MatMul", micro, f"{scope}/up_proj-Linear", *made)
            summed = self.all_reduce(product, self.tp, scope=scope, micro=micro, type=BIG)
            made = [self.compute("Exp", micro, scope, summed)]
        return made[0]

    def backward(self, micro: int, *inputs: int) -> int:
        made = self.forward(micro, *inputs, start=RECOMPUTED)
        for layer in reversed(range(self.layers)):
            scope = f"{GRADIENT}network-Net/layers-CellList/{layer}-Layer/{self.cell}"
            made = self.compute("MatMulGrad", micro, scope, made)
            self.all_reduce(made, self.tp, scope=scope, micro=micro, type=BIG)
        return made

    def update(self) -> None:
        summed = self.all_reduce(self.last[0], self.dp, scope=f"{GRADIENT}Grad_Mirror", type=BIG)
        for _ in range(self.layers):
            self.compute("Adam", None, "Default/update-Update/optimizer-AdamW", summed)


BIG = TensorType("Float32", (1024, 2048))


def steps(count: int, layers: int, cell: str) -> list[StepLines]:
    """Of all eight ranks. A stage of the first half hands on a micro-batch after it has taken a gradient."""
    ranks: list[StepLines] = []
    for rank in range(4):
        first = _Stage(rank, layers, cell)
        made = first.forward(0)
        sent = first.send(made, rank + 4, micro=0)
        for number in range(count):
            if number + 1 < count:
                made = first.forward(number + 1)
            arrived = first.receive(rank + 4, after=[sent, made], micro=number, type=BIG)
            if number + 1 < count:
                sent = first.send(made, rank + 4, after=[arrived], micro=number + 1)
            first.backward(number, arrived)
        first.update()
        ranks.append(first)
    for rank in range(4, 8):
        second, before = _Stage(rank, layers, cell), []
        for number in range(count):
            arrived = second.receive(rank - 4, after=before, micro=number, type=BIG)
            made = second.forward(number, arrived)
            before = [second.send(second.backward(number, made), rank - 4, micro=number)]
        second.update()
        ranks.append(second)
    return ranks


def small_plan() -> Plan:
    """As a simulation has it: what was typed, and what was changed for execution."""
    return resolve(load_recipe(RECIPE, ["train.seed=7", "model.num_layers=4", "model.attention=plain"]))


def small_timed(count: int = 4, layers: int = 2, cell: str = "mlp-FeedForward", ranks: int = 8) -> Timed:
    """A step of `count` micro-batches; of the first `ranks` ranks."""
    executions = [step.execution() for step in steps(count, layers, cell)][:ranks]
    graphs = {rank: [(execution, 1)] for rank, execution in enumerate(executions)}
    line = simulate_step(graphs, mesh=MESH, cost=COST)
    memory = {rank: memory_over_time(graphs[rank], line, rank=rank) for rank in graphs}
    return Timed(plan=small_plan(), programs=(), timeline=line, memory=memory)


def crowded_timed(operators: int) -> Timed:
    """So many operators over the computing streams of eight ranks, each of its own name, cell and length; every tenth
    is long. Nothing waits."""
    each = operators // 8
    spans: list[Span] = []
    for rank in range(8):
        now = 0.0
        for index in range(each):
            took = (1 + (index * 7919 + rank) % 97) * (20e-6 if index % 10 == 0 else 1e-6)
            path = f"{'gradient of ' * (index // 50 % 2)}network.layers.{index // 100 % 80}.part{index % 30}"
            spans.append(
                Span(
                    rank=rank, stream="compute", start_s=now, end_s=now + took, op=f"Operator{index % 40}", path=path,
                    micro=index // 500 % 32, bytes=0, ranks=(), axes=(), run=0, index=index,
                )
            )  # fmt: skip
            now += took
    end = max(span.end_s for span in spans)
    times = [RankTimes(rank=rank, busy_s=end, exposed_s={}, bubble_s=0.0, bubble=0.0) for rank in range(8)]
    line = Timeline(mesh=MESH, spans=tuple(spans), step_time_s=end, ranks=tuple(times), links=())
    points = tuple((end * at / 20_000, (at * 7919 % 1000) * 2**20) for at in range(20_000))
    peak = small_timed(count=1, layers=1).memory[0].peak
    curves = {
        rank: MemoryCurve(rank=rank, points=points, peak_bytes=999 * 2**20, peak_s=points[321][0], peak=peak)
        for rank in range(8)
    }
    return Timed(plan=small_plan(), programs=(), timeline=line, memory=curves)


def small_simulation(timed: Timed | None = None, name: str = "model.layers.0.mlp.up_proj.weight") -> Simulation:
    """Two steps that are equal but for rounding; `name` is the tensor furthest apart."""
    return Simulation(
        plan=small_plan(),
        changes={"model.num_layers": 4, "model.attention": "plain"},
        random_tokens=True,
        single_losses=(5.545177, 5.501234),
        cluster_losses=(5.545177, 5.501235),
        gradients=Difference(
            relative={name: 3.1e-7, "model.norm.weight": 1e-7}, zero=("model.k_proj.bias",), absolute={}
        ),
        parameters=Difference(relative={}, zero=(), absolute={name: 2e-8, "model.norm.weight": 0.0}),
        replicas_apart=0.0,
        deadlock=None,
        timed=timed or small_timed(),
        seconds={"compile": 41.0, "single": 43.5, "execute": 2.25},
    )


def wrong_simulation() -> Simulation:
    """Trains otherwise from the second step on."""
    found = small_simulation()
    assert found.gradients
    gradients = replace(found.gradients, relative={"model.norm.weight": 0.5, "model.embed.weight": 1e-7})
    return replace(found, cluster_losses=(5.545177, 5.7), gradients=gradients, replicas_apart=1e-3)


def hanging_simulation(where: str = "network.layers.0.mlp") -> Simulation:
    """Ranks 0 and 4 wait for each other."""
    waits = [
        Wait(rank=0, op="Send", where=where, group=(0, 4), missing=(4,)),
        Wait(rank=4, op="AllReduce", where=where, group=(4, 5, 6, 7), missing=(5, 6, 7)),
    ]
    deadlock = Deadlock(f"rank 0 waits in Send ({where}), rank 4 in AllReduce ({where})", waits)
    empty = replace(small_simulation(), gradients=None, parameters=None, cluster_losses=())
    return replace(empty, deadlock=deadlock, timed=None)
