"""`zoo.export`: writes a release as an ONNX file, which runs without torch and without this project."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import timm
import torch
from onnxscript.ir.passes.common import ClearMetadataAndDocStringPass
from torch import Tensor, nn

from zoo.errors import ReleaseError, first_line
from zoo.files import check_writable, write_atomic, writing
from zoo.hub import open as open_release
from zoo.release import Release
from zoo.release.write import noise, outputs_match


class _Model(nn.Module):
    """An encoder with its class centers, if any, as the last layer."""

    def __init__(self, release: Release) -> None:
        super().__init__()
        self.encoder, self.centers = release.load(), release.centers

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        features = self.encoder(images)
        return (features,) if self.centers is None else (self.centers.logits(features), features)


def export(release: Release | str | Path, file: str | Path) -> dict[str, Any]:
    """Write a release as one ONNX file with its weights, check it with onnxruntime, and return its metadata.

    The input is `pixel_values` `[batch, 3, H, W]`, float32; the outputs are `logits` `[batch, C]`, if the
    release has class centers, and `features` `[batch, D_f]`. The metadata are `name`, `license`, the logits'
    `class_names`, and the preprocessing as arguments of `timm.data.create_transform`: `input_size`,
    `crop_pct`, `crop_mode`, `interpolation`, `mean`, `std`; each value is JSON.

    Args:
        release: a `Release` or its name, see `zoo.open`.
        file: the .onnx file to write; an existing one is replaced atomically.

    Raises:
        ZooError: if the file cannot be written, torch cannot export the architecture, or the outputs of
            onnxruntime and torch differ.
    """
    check_writable(file := Path(file), "file", ".onnx")
    opened = open_release(release)
    model, outputs, cfg = _Model(opened).eval(), ["features"], opened.config["pretrained_cfg"]
    about = {"name": opened.name, "license": cfg["license"]}
    about |= timm.data.resolve_data_config({}, pretrained_cfg=cfg)
    if model.centers is not None:
        outputs, about["class_names"] = ["logits", *outputs], model.centers.class_names
    example, others = (noise(number, *about["input_size"]) for number in (2, 3))
    try:
        names: Any = {"input_names": ["pixel_values"], "output_names": outputs, "verbose": False}
        program: Any = torch.onnx.export(model, (example,), dynamic_shapes=[{0: "batch"}], **names)
        ClearMetadataAndDocStringPass()(program.model)  # every node names source files of this machine
        program.model.metadata_props.update((key, json.dumps(value)) for key, value in about.items())
        content = program.model_proto.SerializeToString()
        onnx.checker.check_model(content, full_check=True)
        session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        found = session.run(outputs, {"pixel_values": others.numpy()})
        with torch.no_grad():
            for name, array, expected in zip(outputs, found, model(others), strict=True):
                if not outputs_match(torch.from_numpy(array), expected):
                    raise ValueError(f"onnxruntime computes other {name} than torch")
    except Exception as error:  # from three libraries and any of 1,400 architectures
        reason = first_line(error.__cause__ or error)  # torch wraps them in a page of advice
        raise ReleaseError(f"{opened.name}: cannot be exported: {reason}") from error
    with writing(f'"{file}"'):
        write_atomic(file, lambda temporary: temporary.write_bytes(content))
    return about
