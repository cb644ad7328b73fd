"""What users call to train; names are fetched when they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zoo.lazy import attributes

if TYPE_CHECKING:
    from zoo.api.planning import plan_finetuning, plan_pretraining
    from zoo.api.pretraining import finetune, pretrain
    from zoo.api.snapshots import snapshot

__all__ = ["finetune", "plan_finetuning", "plan_pretraining", "pretrain", "snapshot"]

__getattr__ = attributes(
    __name__,
    {
        "finetune": "pretraining",
        "plan_finetuning": "planning",
        "plan_pretraining": "planning",
        "pretrain": "pretraining",
        "snapshot": "snapshots",
    },
)
