"""What users call that has no room of its own yet; names are fetched when they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.api.finetuning import finetune, plan_finetuning
    from zoo.api.own_pretraining import (
        data_in_place,
        plan_own_pretraining,
        pretrain,
        refuse_beside_a_recipe,
    )
    from zoo.api.pretraining import plan_pretraining
    from zoo.api.snapshots import snapshot

__all__ = [
    "data_in_place",
    "finetune",
    "plan_finetuning",
    "plan_own_pretraining",
    "plan_pretraining",
    "pretrain",
    "refuse_beside_a_recipe",
    "snapshot",
]

__getattr__ = attributes(
    __name__,
    {
        "data_in_place": "own_pretraining",
        "finetune": "finetuning",
        "plan_finetuning": "finetuning",
        "plan_own_pretraining": "own_pretraining",
        "plan_pretraining": "pretraining",
        "pretrain": "own_pretraining",
        "refuse_beside_a_recipe": "own_pretraining",
        "snapshot": "snapshots",
    },
)
