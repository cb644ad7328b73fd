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


@pytest.mark.parametrize(
    ("code", "seconds"),
    [
        ("zoo.list_models()", 0.3),
        ("import zoo.cli; zoo.cli.app(['list'], standalone_mode=False)", 1.5),
    ],
)
def test_names_are_listed_soon_and_without_torch(code, seconds):
    times = (
        f"import sys, time; start = time.process_time(); import zoo; {code};"
        "assert not {'torch', 'timm', 'numpy', 'huggingface_hub'} & set(sys.modules);"
        "print(time.process_time() - start)"
    )
    assert min(float(run(times).splitlines()[-1]) for _ in range(3)) < seconds


HEAVY = {"torch", "timm", "torchvision", "pandas", "sklearn", "matplotlib", "datasets"}
PACO = "cifar_resnet20.paco_digits_lt50"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (f"show {PACO}", "centers: 10 classes x 64 features"),
        ("show tf_efficientnet_lite0.paco_cifar100_lt100", "zoo.load"),
        ("show cifar_resnet20.ce_digits --full", "batch_size"),
        ("show tau", "Temperature"),
        ("show keys", "training: section"),
        ("list --shipped", PACO),
        ("shwo", "No such command"),
        ("show pako", "paco"),
        (f"pretrain {PACO} --set optimizer.lrr=1", 'Did you mean "lr"?'),
        (f"pretrain {PACO}x", PACO),
        (f"finetune {PACO} --init {PACO} --set training.epoch=1", 'Did you mean "epochs"?'),
        (f"compare {PACO} --init {PACO} --set training.epoch=1", 'unknown key "objective.loss"'),
        (f"sweep {PACO} --set objective.tua=0.1,0.2", 'Did you mean "tau"?'),
        (f"evaluate knnn {PACO}", 'Did you mean "knn"?'),
        (f"evaluate knn {PACO} --set kk=1", 'Did you mean "k"?'),
        (f"reproduce {PACO}x", PACO),
        (f"diagnose {PACO}x", PACO),
    ],
)
def test_mistakes_and_shipped_releases_are_shown_without_heavy_packages(arguments: str, told: str) -> None:
    code = f"import sys; sys.argv = {['zoo', *arguments.split()]}; from zoo.cli import main; import atexit;"
    code += f"atexit.register(lambda: print('imported', {HEAVY} & set(sys.modules))); main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told in done.stdout + done.stderr and "Traceback" not in done.stderr
    assert done.stdout.endswith("imported set()\n")


@pytest.mark.parametrize(
    "imports",
    [
        "import zoo, timm",
        "import timm, zoo",
        "import zoo, importlib.util; importlib.util.find_spec('timm'); import timm",
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
    assert {"open", "load", "ZooError", *zoo.__all__} <= set(dir(zoo)) | {"__version__"}
    assert not {"Any", "TYPE_CHECKING", "annotations", "importlib", "_timm_hook"} & set(dir(zoo))
    with pytest.raises(AttributeError, match="lod"):
        zoo.lod  # noqa: B018
    names = {"open": open}
    exec("from zoo import *", names)
    assert names["open"] is open and names["load"] is zoo.load  # a star leaves the builtins


BASE = """
import sys
for package in ("datasets", "matplotlib", "pandas", "pyarrow", "scipy", "sklearn"):
    sys.modules[package] = None  # as if it were not installed
import zoo
from PIL import Image
images = [Image.new("RGB", (32, 32))]
assert zoo.open(NAME).nearest_classes(images[0], k=3) and zoo.load(NAME, head="centers")
assert zoo.predict(NAME, images) and zoo.embed(NAME, images).features.shape == (1, 64)
zoo.push, zoo.pull, zoo.convert
try:
    zoo.pretrain
except zoo.ZooError as error:
    print(error)
""".replace("NAME", repr(PACO))


def test_loading_predicting_and_embedding_need_no_package_of_the_extra_train() -> None:
    done = subprocess.run([sys.executable, "-c", BASE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'pip install "contrastive-zoo[train]"' in done.stdout
