"""`import zoo` is light, and registers the project's architectures with timm in whatever order they come."""

import subprocess
import sys

import pytest

import zoo


def run(code: str) -> str:
    """Run `code` in a fresh interpreter and return what it prints."""
    command = [sys.executable, "-W", "error::UserWarning", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_import_loads_no_torch_and_takes_less_than_300_milliseconds():
    code = (
        "import sys, time; start = time.process_time(); import zoo; took = time.process_time() - start;"
        "assert zoo.list_models() and not {'torch', 'timm', 'numpy'} & set(sys.modules); print(took)"
    )
    assert min(float(run(code)) for _ in range(3)) < 0.3


def test_zoo_list_loads_no_torch_and_takes_little_time():
    code = (
        "import contextlib, io, sys, time, zoo.cli; shown = io.StringIO();"
        "exec('with contextlib.redirect_stdout(shown): zoo.cli.app([\"list\"], standalone_mode=False)');"
        "assert 'resnet50.moco_v2_ft_in1k' in shown.getvalue();"
        "assert not {'torch', 'timm', 'numpy', 'huggingface_hub'} & set(sys.modules);"
        "print(time.process_time())"
    )
    assert min(float(run(code)) for _ in range(3)) < 1.5


@pytest.mark.parametrize(
    "imports",
    [
        "import zoo, timm",
        "import timm, zoo",
        "import zoo, importlib.util; importlib.util.find_spec('timm'); import timm",
        "import zoo.backbones, timm",
    ],
)
def test_timm_knows_the_architectures_after_importing_zoo(imports):
    code = (
        f"{imports}; import sys; from importlib.machinery import SourceFileLoader;"
        "print(timm.create_model('cifar_resnet20').num_features, timm.is_model('resnet18_cifar'));"
        "hooked = any('zoo' in type(finder).__module__ for finder in sys.meta_path);"
        "print(type(timm.__spec__.loader) is SourceFileLoader, hooked)"
    )
    assert run(code).splitlines() == ["64 True", "True False"]


def test_public_names_and_submodules_are_imported_when_they_are_used():
    code = "import sys, zoo; before = 'zoo.config' in sys.modules; print(before, callable(zoo.config.parse))"
    assert run(code) == "False True"
    assert set(zoo.__all__) <= set(dir(zoo))
    assert all(getattr(zoo, name).__name__ == name for name in zoo.__all__)


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        zoo.lod  # noqa: B018
    assert not hasattr(zoo, "__wrapped__")
