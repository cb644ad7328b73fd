"""A user's own script: trains twice, the second time in a process group of its own."""

import sys
from pathlib import Path

import torch.distributed as dist

import zoo
from zoo.launch import rank

RECIPE = "cifar_resnet20.paco_digits_lt50"
SHORT = (
    "training.epochs=1",
    "schedule.warmup_epochs=0",
    "training.batch_size=64",
    "training.device=cpu",
    "evaluation=[]",
)

folder = Path(sys.argv[1])
first = zoo.pretrain(RECIPE, out=folder / "first", overrides=SHORT)
assert not dist.is_initialized()
dist.init_process_group("gloo")
second = zoo.pretrain(RECIPE, out=folder / "second", overrides=SHORT)
assert dist.is_initialized()  # it is the script's
dist.destroy_process_group()
sizes = {release.metrics["training"]["ranks"] for release in (first, second)}
print(f"rank {rank()}: trained on {sizes.pop()} ranks, twice\n", end="", flush=True)
