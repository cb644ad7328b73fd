"""Everything that a run on a GPU does, on a GPU that is not there: tests/pretend_gpu.py says what that shows.

What it cannot show is said there as well: CUDA's own kernels, numbers, speed and memory, autocast, whether a
real capture takes every operation, compilation and NCCL. For these there is tests/test_gpu.py, where there is
a GPU.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.pretend_gpu import Event, Gpu, GpuTensor, Stream, pretend_gpu
from tests.replayed_helpers import WHOLE, every_view, made_both_ways
from tests.test_recipes_start import images, shrunk  # noqa: F401  # a fixture
from tests.test_training import RECIPES, SHORT, run
from zoo.cli import app
from zoo.cuda_graph import capture
from zoo.data import Batch, open_dataset
from zoo.data.prefetch import MOST_AHEAD
from zoo.errors import DataError, ZooWarning
from zoo.evaluation.features import extract
from zoo.evaluation.linear import fit_linear
from zoo.experiments.sweep_file import read_sweep
from zoo.functional.knn import knn_predict
from zoo.objectives import Output
from zoo.ranks import Ranks
from zoo.training import Recipe, RunFolder, train
from zoo.training.build import build_objective
from zoo.training.checkpointing import to_host
from zoo.training.graph import WARM_UP, GraphedStep
from zoo.training.meter import Meter
from zoo.training.prepare import open_loader, place
from zoo.training.profile import Profile, describe
from zoo.training.step import Stepper

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: tests/test_gpu.py")
CPU, GPU = torch.device("cpu"), torch.device("cuda")
GPU_SWEEPS = ("cifar100_lt", "cifar100_moco", "cifar100_temperature", "pico_q005", "cifar100_lt100_best")


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    with pretend_gpu() as found:
        yield found
        assert not found.faults


# --- what stands in for a GPU finds what it is for


def test_it_computes_what_a_cpu_does(gpu: Gpu) -> None:
    x, weight = torch.randn(4, 3), torch.randn(3, 2, requires_grad=True)
    there = weight.detach().to(GPU).requires_grad_()
    for w, rows in ((weight, x), (there, x.to(GPU))):
        (rows @ w).exp()[1:].sum().backward()
    assert isinstance(there.grad, GpuTensor) and there.grad.device.type == "cuda" and there.grad.is_cuda
    assert weight.grad is not None and torch.equal(there.grad.cpu(), weight.grad)


WAITS: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "condition": lambda x: bool(x[0] > 0),
    "list": lambda x: x.tolist(),
    "copy": lambda x: x.cpu(),
    "copy into memory that is not pinned": lambda x: torch.empty(3).copy_(x, non_blocking=True),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "write by a mask": lambda x: x.__setitem__(x > 0, x[:1]),
    "unique": lambda x: x.unique(),
    "repeats": lambda x: x.repeat_interleave(torch.ones(3, dtype=torch.int64, device=GPU)),
    "numbers from the host": lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=GPU),
    "index on the host": lambda x: x[torch.tensor([0, 1])],
    "synchronize": lambda x: torch.cuda.synchronize(),
}


@pytest.mark.parametrize("kind", WAITS)
def test_it_sees_the_host_wait(kind: str, gpu: Gpu) -> None:
    x = torch.ones(3, device=GPU)
    repeats = torch.ones(3, dtype=torch.int64, device=GPU)
    with gpu.watched() as waits:
        x * 2 + repeats
        x[repeats]
        x.cpu  # noqa: B018
        torch.empty(3, pin_memory=True).copy_(x, non_blocking=True)
        torch.ones(3).pin_memory().to(GPU, non_blocking=True)
        assert not waits
        WAITS[kind](x)
        assert waits
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchronizing"):
        WAITS[kind](x)
    with pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        WAITS[kind](x)


def test_it_refuses_to_mix_devices(gpu: Gpu) -> None:
    here, there = torch.ones(3), torch.ones(3, device=GPU)
    single = torch.tensor(2.0)
    assert (there * single).tolist() == [2, 2, 2]  # as torch does
    for mixed in (lambda: here + there, lambda: torch.where(there > 0, here, there)):
        with pytest.raises(RuntimeError, match="same device"):
            mixed()
    with pytest.raises(RuntimeError, match="same device"):
        torch.stack([single, there.sum()])
    with pytest.raises(TypeError, match="can't convert cuda:0"):
        there.numpy()


def test_what_is_on_its_way_to_the_host_is_not_there_yet(gpu: Gpu) -> None:
    x = torch.ones(3, device=GPU)
    host = torch.empty(3, pin_memory=True).copy_(x, non_blocking=True)
    event = Event()
    event.record()
    assert host.isnan().all()
    assert not event.query()
    event.synchronize()
    assert host.tolist() == [1, 1, 1]


def test_it_sees_streams_that_do_not_wait() -> None:
    with pretend_gpu() as gpu:
        x, side = torch.ones(3, device=GPU), Stream()
        with torch.cuda.stream(side):
            x + 1
        assert "reads what stream 0 may not have written" in gpu.faults.pop()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y = x + 1
        assert not gpu.faults
        x.zero_()
        assert "overwrites what another may still read" in gpu.faults.pop()
        torch.cuda.current_stream().wait_stream(side)
        y + 1
        assert not gpu.faults
        del y
        with torch.cuda.stream(side):
            torch.ones(3, device=GPU)
        assert "takes memory that another stream still uses" in gpu.faults.pop()


def test_a_replay_has_the_tensors_and_the_python_values_of_its_capture(gpu: Gpu) -> None:
    x, y, factor = torch.ones(3, device=GPU), torch.zeros(3, device=GPU), 2.0
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y.add_(x * factor)
    assert y.tolist() == [0, 0, 0]  # a capture computes nothing
    factor = 5.0
    x.fill_(10.0)
    graph.replay()
    graph.replay()
    assert y.tolist() == [40, 40, 40]
    with pytest.raises(RuntimeError, match="generator"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.rand(3, device=GPU, generator=torch.Generator(GPU))


# --- steps of the recipes that are for a GPU


def cases() -> list[Any]:
    """Of each sweep for a GPU the recipes that run other code than those before, as the sweep sets them."""
    seen, params = set(), []
    for sweep in GPU_SWEEPS:
        found = read_sweep(sweep)
        chosen = {
            key: next(iter(values.values() if isinstance(values, dict) else values))
            for key, values in found.set.items()
        }
        if sweep.endswith("best"):  # with FT, which is the second
            chosen["objective.feature_transform"] = found.set["objective.feature_transform"]["with"]  # type: ignore
        for name in found.recipes:
            data = Recipe.load(name).model_dump(mode="json")
            views = str([[op["op"] for op in view] for view in data["views"]["train"]])
            ft = data["objective"].get("feature_transform") or chosen.get("objective.feature_transform")
            loss = str(data["objective"].get("loss"))
            code = (data["backbone"]["arch"], data["objective"]["name"], loss, views, ft is not None)
            if code not in seen:
                seen.add(code)
                params.append(pytest.param(name, chosen, id=f"{sweep}-{name}"))
    return params


def prepared(r: Recipe, dataset: Any, device: torch.device = GPU) -> tuple[Any, Stepper]:
    objective = build_objective(r, dataset)
    place(objective, r, device)
    loader = open_loader(dataset, r, device)
    return loader, Stepper(objective, r, loader.steps_per_epoch, device)


@pytest.mark.parametrize(("name", "chosen"), cases())
def test_no_step_of_a_sweep_for_a_gpu_waits(
    name: str,
    chosen: dict[str, Any],
    images: Callable[[int], Path],  # noqa: F811
    gpu: Gpu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ZOO_CACHE", str(tmp_path))
    base = shrunk(name).model_dump(mode="json")
    r = Recipe.model_validate(base)
    graph = chosen.get("training.cuda_graph", False)
    later = chosen.get("objective.feature_transform") or base["objective"].get("feature_transform")
    # epochs of 5, 5 and 2 or of 5 and 4 images; a graph is captured anew when FT begins, in epoch 1
    steps = (12 if later else 8) if graph else 5
    schedule = {"name": "constant", "warmup_epochs": 1, "warmup_prefix": False, "milestones": []}
    changes = {**chosen, "views.cache": False, "training.batch_size": 5, "training.observe_every": 4}
    changes |= {"training.epochs": 16, "schedule": {**base["schedule"], **schedule}}
    if "convnext" not in name:
        changes |= {
            "backbone.arch": "cifar_resnet20",  # the same code, sooner done
            "backbone.args": {},
            "name": "cifar_resnet20.x",
        }
    r = changed(r, changes, begins=1)
    dataset = open_dataset(r.data, "train", images(32))
    loader, stepper = prepared(r, dataset)
    batches = enumerate(loader.stream(0, steps))
    for step, batch in batches:
        with gpu.watched() as waits:
            output = stepper(step, batch)
        assert not [wait for wait in waits if "graph capture" not in wait], step
        scalars = [output.loss, *output.metrics.values()]
        assert {each.device.type for each in scalars} == {"cuda"}
        assert float(output.loss) == float(output.loss)  # not nan
        assert ("gradient_norm" in output.metrics) == (step % 4 == 3)  # not the last of 16 epochs
    assert bool(graph) == bool(sum(each.replays for each in gpu.graphs))
    assert {p.device.type for p in stepper.objective.state_dict().values()} == {"cuda"}


@pytest.mark.parametrize("views", every_view())
def test_replayed_views_are_the_ordinary_ones_bit_for_bit(views: Any, gpu: Gpu) -> None:
    made_both_ways(views, GPU)
    assert [each.replays for each in gpu.graphs] == [WHOLE - 1]  # the first is an ordinary one


def test_the_host_is_not_far_ahead_of_the_steps(gpu: Gpu) -> None:
    """A batch handed over lies in memory until its step is done."""
    r = Recipe.load(RECIPES["classify"], [*SHORT, "training.device=cuda"])
    loader = open_loader(open_dataset(r.data, "train", None), r, GPU)
    with gpu.watched() as waits:
        assert len(list(loader.stream(0, MOST_AHEAD + 3))) == MOST_AHEAD + 3
    assert len([wait for wait in waits if "Event.synchronize" in wait]) == 3


def test_views_that_cannot_be_captured_say_where(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    r = Recipe.load(RECIPES["classify"], [*SHORT, "training.device=cuda", "training.cuda_graph=true"])
    loader = open_loader(open_dataset(r.data, "train", None), r, GPU)
    monkeypatch.setattr(
        "zoo.data.tensor_views.constant", lambda values, device: torch.tensor(values).to(device)
    )
    place = r"copy from the host.*, in data/tensor_views/__init__\.py:\d+\); set it false"
    with pytest.raises(DataError, match=rf"cuda_graph: the views cannot be captured \(.*{place}"):
        list(loader.stream(0, 4))


def changed(r: Recipe, changes: dict[str, Any], *, begins: int) -> Recipe:
    """The recipe with dotted keys set; what begins later begins after so many epochs."""
    data = r.model_dump(mode="json")
    for key, value in changes.items():
        section = data
        *path, last = key.split(".")
        for part in path:
            section = section[part]
        section[last] = value
    if data["objective"].get("feature_transform"):
        data["objective"]["feature_transform"] = {
            **data["objective"]["feature_transform"],
            "start_epoch": begins,
        }
    if "prototype_start" in data["objective"]:
        data["objective"]["prototype_start"] = begins
    return Recipe.model_validate(data)


# --- whole runs


@pytest.mark.parametrize("graph", ["false", "true"])
def test_a_run_is_that_of_a_cpu(graph: str, gpu: Gpu, tmp_path: Path) -> None:
    """Loop, meter, records, checkpoints, the average of the weights; an epoch's last batch is small."""
    changes = ("training.ema={decay: 0.9, warmup: true}", "training.observe_every=4", "training.log_every=2")
    name, rows = RECIPES["classify"], {}
    for device in ("cpu", "cuda"):
        own = (f"training.device={device}", f"training.cuda_graph={graph}", "training.batch_size=80")
        objective = run(Recipe.load(name, [*SHORT, *changes, *own]), tmp_path / device)
        rows[device] = [row["loss"] for row in RunFolder(tmp_path / device).rows()]
        assert {p.device.type for p in objective.state_dict().values()} == {device}
    assert rows["cuda"] == pytest.approx(rows["cpu"], rel=1e-3) and len(rows["cpu"]) == 6
    assert (sum(each.replays for each in gpu.graphs) > 2) == (graph == "true")
    allowed = (
        "checkpointing.py",
        "meter.py",
        "nonfinite.py",
        "observation.py",
        "prefetch.py",
        "prepare.py",
        "resident.py",
        "chosen.py",
        "cuda_graph.py",
    )
    assert not [wait for wait in gpu.waits if not any(f"/{file}:" in wait for file in allowed)]
    in_meter = [wait for wait in gpu.waits if "meter.py" in wait]
    assert len(in_meter) <= 2  # when a checkpoint is due


def test_a_state_goes_from_a_cpu_to_a_gpu_and_back(gpu: Gpu) -> None:
    plain = ["training.batch_size=80", "training.ema={decay: 0.9, warmup: true}", "optimizer.name=adamw"]
    here = Recipe.load(RECIPES["classify"], [*SHORT, *plain])
    there = Recipe.load(
        RECIPES["classify"], [*SHORT, *plain, "training.device=cuda", "training.cuda_graph=true"]
    )
    dataset = open_dataset(here.data, "train", None)
    batches = list(open_loader(dataset, here, CPU).stream(0, 8))
    on_gpu = [Batch(tuple(v.to(GPU) for v in b.views), b.labels.to(GPU), b.index.to(GPU)) for b in batches]
    (_, expected), (_, a), (_, b) = (
        prepared(here, dataset, CPU),
        prepared(there, dataset),
        prepared(here, dataset, CPU),
    )
    losses = [float(expected(step, batch).loss) for step, batch in enumerate(batches)]
    b.load_state(to_host(a.state()))
    found = [float(b(step, batches[step]).loss) for step in range(2)]
    a.load_state(to_host(b.state()))
    found += [float(a(step, on_gpu[step]).loss) for step in range(2, 7)]
    replayed = sum(each.replays for each in gpu.graphs)
    a.load_state(to_host(a.state()))  # what the graph has written to lies elsewhere now
    found += [float(a(7, on_gpu[7]).loss)]
    assert found == pytest.approx(losses, rel=1e-3)
    assert replayed and replayed == sum(each.replays for each in gpu.graphs)
    state = to_host(a.state())
    assert {x.device.type for x in torch.utils._pytree.tree_leaves(state) if isinstance(x, torch.Tensor)} == {
        "cpu"
    }


def test_features_and_probes_are_those_of_a_cpu(gpu: Gpu) -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(60, 8, generator=generator)
    labels = torch.arange(60) % 3
    features[range(60), labels] += 2
    model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.BatchNorm1d(4))
    batches = [(features[i : i + 16], labels[i : i + 16]) for i in range(0, 60, 16)]
    expected = extract(model, batches, device=CPU, count=60)
    with gpu.watched() as waits:
        found = extract(model, [(x.pin_memory(), y) for x, y in batches], device=GPU, count=60)
    torch.testing.assert_close(found.features, expected.features)
    assert {wait.split()[0] for wait in waits} <= {"Event.synchronize", "_to_copy"}
    for solver in ("lbfgs", "sgd"):
        probes = [
            fit_linear(features.to(device), labels, 3, l2_grid=(0.1, 0.01), solver=solver, max_iter=9)  # type: ignore
            for device in (CPU, GPU)
        ]
        assert probes[1].weight.is_cuda and probes[0].l2 == probes[1].l2
        torch.testing.assert_close(
            probes[0].logits(features), probes[1].logits(features).cpu(), rtol=1e-3, atol=1e-3
        )
    votes = [
        knn_predict(features.to(device), labels, features, k=5, tau=0.1, num_classes=3).predictions.cpu()
        for device in (CPU, GPU)
    ]
    assert torch.equal(*votes)


# --- what is said before a training

FASTER = "mostly faster on a GPU"
GRAPH, BF16 = "--set training.cuda_graph=true, with", "--set training.precision=bf16, with"
NO_TRAINING = "method={name: nearest_center, centers: means, similarity: cosine}"
MIX = "objective.mix={mixup: 0.8, cutmix: 0.0, probability: 1.0, switch_probability: 0.5, mode: batch}"


def said_by(
    command: list[str], changes: list[str], out: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, bool]:
    """What a command that trains says before it does, and whether it comes to that."""
    begun: list[Any] = []
    monkeypatch.setattr("zoo.api.pretrain", lambda *_, **__: begun.append(1))
    monkeypatch.setattr("zoo.cli.training._announce", lambda _: None)
    sets = [text for change in changes for text in ("--set", change)]
    done = CliRunner().invoke(app, [*command, "--out", str(out), *sets])
    assert done.exit_code == 0, done.output
    return done.stderr, bool(begun)


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("paco", [], (GRAPH, BF16)),
        ("paco", ["training.precision=bf16"], (GRAPH,)),
        ("paco", ["training.precision=tf32"], (GRAPH,)),
        ("paco", ["training.cuda_graph=true"], ()),
        ("paco", ["training.device=cpu"], ()),
        ("paco", ["training.precision=fp16"], ()),
        ("paco", ["training.checkpoint_activations=true"], ()),
        ("paco", ["optimizer.name=lars"], ()),
        ("classify", [MIX], ()),
        ("classify", ["objective.loss=cross_entropy", NO_TRAINING], ()),
    ],
)
def test_who_leaves_a_gpus_speed_unused_is_told(
    name: str,
    changes: list[str],
    expected: tuple[str, ...],
    gpu: Gpu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said, begun = said_by(["pretrain", RECIPES[name]], changes, tmp_path, monkeypatch)
    assert begun
    assert [text for text in (FASTER, GRAPH, BF16) if text in said] == [FASTER, *expected][
        : 3 * bool(expected)
    ]
    assert said.count("\n") == bool(expected)


def test_a_run_that_goes_on_several_ranks_and_a_gpu_without_bf16_are_told_what_holds(
    gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["pretrain", RECIPES["paco"]]
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda *_: False)
    said, _ = said_by(command, [], tmp_path, monkeypatch)
    assert GRAPH in said and BF16 not in said
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert said_by(command, [], tmp_path, monkeypatch) == ("", True)
    monkeypatch.delenv("WORLD_SIZE")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").touch()
    assert said_by([*command, "--resume"], [], tmp_path, monkeypatch) == ("", True)


def test_a_fine_tuning_is_told_too(gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ["finetune", RECIPES["classify"], "--init", "timm:resnet18.a1_in1k"]
    said, begun = said_by(command, [], tmp_path, monkeypatch)
    assert begun and GRAPH in said


def test_a_profile_names_what_can_be_switched_on() -> None:
    found = Profile({"input": 0.1, "forward": 0.9}, 1.0, 64, 3, 12, GPU, None, "")
    for change, expected in (((), True), (("training.precision=fp16",), False)):
        with pretend_gpu():
            lines = describe(found, Recipe.load(RECIPES["paco"], change))
        assert any(line.startswith(FASTER) for line in lines) == expected
        assert any(line.endswith("try training.compile") for line in lines)


@pytest.mark.parametrize(
    ("rank", "size", "graph"), [(0, 2, "true"), (1, 2, "true"), (0, 2, "false"), (0, 1, "true")]
)
def test_several_ranks_say_that_they_capture_nothing(
    rank: int, size: int, graph: str, gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Begins(Exception):
        pass

    def begin(*_: Any) -> None:
        raise Begins

    monkeypatch.setattr("zoo.training.loop.place", begin)
    r = Recipe.load(RECIPES["paco"], [f"training.cuda_graph={graph}"])
    data, ranks = open_dataset(r.data, "train", None), Ranks()
    ranks.rank, ranks.size = rank, size
    with warnings.catch_warnings(record=True) as caught, pytest.raises(Begins):
        warnings.simplefilter("always")
        train(build_objective(r, data), data, r, RunFolder(tmp_path), resume=False, ranks=ranks)
    found = [str(each.message) for each in caught if each.category is ZooWarning]
    if (rank, size, graph) == (0, 2, "true"):
        assert len(found) == 1 and found[0].startswith("training.cuda_graph: true is ignored on 2 ranks")
    else:
        assert not found


# --- plants: what would be wrong is found by the tests above


def test_a_step_that_reads_from_the_device_is_seen(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    r = Recipe.load(RECIPES["classify"], [*SHORT, "training.device=cuda", "training.batch_size=80"])
    loader, stepper = prepared(r, open_dataset(r.data, "train", None))
    (batch,) = loader.stream(0, 1)
    stepper(0, batch)
    before = stepper.objective.update

    def update(batch: Batch, output: Output) -> None:
        before(batch, output)
        float(output.loss)

    monkeypatch.setattr(stepper.objective, "update", update)
    with gpu.watched() as waits:
        stepper(1, batch)
    assert len(waits) == 1 and "_local_scalar_dense" in waits[0]


def test_a_metric_on_the_host_is_refused(gpu: Gpu) -> None:
    meter = Meter()
    meter.add(Output(torch.ones((), device=GPU), {"tau": torch.ones(())}), 1, 1)
    with pytest.raises(RuntimeError, match="same device"):
        meter.close({"step": 1})


def test_rows_come_in_order_and_only_when_they_have_arrived(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(Event):
        done = False

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def query(self) -> bool:
            return self.done and (super().query() or super().query())  # whose first look is too early

    made: list[Slow] = []
    monkeypatch.setattr("torch.cuda.Event", Slow)
    meter = Meter()
    for step in (1, 2, 3):
        meter.add(Output(torch.ones((), device=GPU) * step / 4, {}), 1, 1)
        meter.close({"step": step})
    first, second, _ = made
    second.done = True
    assert meter.rows(wait=False) == []
    first.done = True
    assert [(row["step"], row["loss"]) for row in meter.rows(wait=False)] == [(1, 0.25), (2, 0.5)]
    assert [(row["step"], row["loss"]) for row in meter.rows(wait=True)] == [(3, 0.75)]


def test_a_graph_that_reads_the_batch_itself_would_not_see_the_next(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The inputs are copied to where the captured ones lie: else every step is on the same images."""
    r = Recipe.load(RECIPES["classify"], [*SHORT, "training.device=cuda", "training.cuda_graph=true"])
    loader, stepper = prepared(r, open_dataset(r.data, "train", None))
    assert isinstance(stepper._graphed, GraphedStep)
    batches = [batch for batch in loader.stream(0, 9) if len(batch.index) == 64]
    outputs = [stepper(step, batch) for step, batch in enumerate(batches[: WARM_UP + 1])]
    place = stepper._graphed._batch
    assert place is not None and place.views[0] is not batches[WARM_UP].views[0]
    stepper(4, batches[4])
    assert torch.equal(place.views[0].cpu(), batches[4].views[0].cpu())
    assert all(output.loss.is_cuda for output in outputs)


@pytest.mark.parametrize("fails", [False, True])
def test_no_garbage_is_collected_during_a_capture(fails: bool, gpu: Gpu) -> None:
    """A graph of an earlier training that is destroyed meanwhile would break it."""
    collects = []

    def record() -> None:
        collects.append(gc.isenabled())
        if fails:
            raise RuntimeError("not permitted")

    with pytest.raises(RuntimeError, match="not permitted") if fails else nullcontext():
        capture(record)
    assert collects == [False] and gc.isenabled()


def test_after_a_capture_that_failed_later_work_is_not_put_on_its_stream(gpu: Gpu) -> None:
    before = gpu.current

    def record() -> None:
        assert gpu.current is not before
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        capture(record)
    assert gpu.current is before
