"""`zoo pretrain` without a recipe: one is made for somebody's own images."""

import shutil

import pytest

import zoo
from tests.data_fixtures import put
from zoo.errors import ZooError, ZooWarning
from zoo.recipe.planning import batch_for, plan_pretraining

CE = "cifar_resnet20.ce_digits_lt50"
MOCO = "shipped:cifar_resnet20.moco_v2_ft_digits_lt50"


@pytest.fixture
def flat(tmp_path):
    """Images in a folder, without classes."""
    put(tmp_path / "holiday", *(f"{number}.png" for number in range(20)))
    return tmp_path / "holiday"


@pytest.fixture
def classes(tmp_path):
    """A tree with classes and test images."""
    training = (f"train/{'ab'[number % 2]}/{number}.png" for number in range(20))
    put(tmp_path / "insects", *training, "val/a/1.png", "val/b/2.png")
    return tmp_path / "insects"


def planned(**arguments):
    return plan_pretraining(**{"data": "digits", **arguments})[0]


def test_the_recipe_is_moco_v2_for_the_images_and_the_architecture(flat):
    recipe = planned(arch="resnet18", data=f"folder:{flat}")
    assert recipe.name == "resnet18.moco_v2_holiday"
    assert recipe.init is None and recipe.data.source.train == "." and recipe.evaluation == []
    assert recipe.views.eval.size == 224 and recipe.data.mean == [0.485, 0.456, 0.406]
    view = recipe.views.train[0]
    assert view == recipe.views.train[1] and view[0].scale == [0.2, 1.0]
    assert [op.op for op in view[1:]] == ["color_jitter", "grayscale", "gaussian_blur", "horizontal_flip"]
    assert (view[3].kernel_size, view[3].sigma) == (23, [0.1, 2.0])
    learned, training = recipe.objective, recipe.training
    assert (learned.name, learned.queue_size, learned.key_groups) == ("moco", 20, 2)
    assert (training.batch_size, training.drop_last) == (20, True)
    assert (training.epochs, recipe.schedule.warmup_epochs) == (200, 10)
    assert (recipe.optimizer.name, recipe.optimizer.lr) == ("momentum", 0.02344)


def test_size_batch_and_epochs_that_are_asked_for_decide_the_rest():
    wanted = {"views.eval.size": 96, "training.batch_size": 100, "training.epochs": 40}
    recipe = planned(arch="convnext_atto", overrides=wanted)
    (crop, *_, blur) = recipe.views.train[0]
    assert (crop.size, blur.kernel_size, blur.sigma[1]) == (96, 9, 0.857), "digits are not mirrored"
    assert recipe.objective.queue_size == 300 and recipe.schedule.warmup_epochs == 4
    rate = pytest.approx(5e-4 * 100 / 256, rel=1e-3)
    assert (recipe.optimizer.name, recipe.optimizer.lr) == ("adamw", rate)
    assert planned(arch="levit_128s").optimizer.name == "adamw", "attention, also beside BatchNorm"
    small = planned(arch="vit_tiny_patch16_224", overrides={"views.eval.size": 32})
    assert small.backbone.args == {"img_size": 32}
    assert small.views.backend == "tensor" and small.data.image_size == 32


def test_a_start_gives_architecture_size_and_normalisation_and_a_tenth_of_the_rate():
    recipe = planned(init=MOCO, objective="simclr", overrides=["init.release=x", "objective.tau=0.1"])
    fresh = planned(arch="cifar_resnet20", objective="simclr")
    assert recipe.init.release == MOCO and recipe.views.eval.size == zoo.open(MOCO).preprocess.input_size == 8
    assert (recipe.name, recipe.objective.name) == ("cifar_resnet20.simclr_digits", "simclr")
    assert recipe.optimizer.lr == pytest.approx(fresh.optimizer.lr / 10)
    assert recipe.description.endswith("Changed: objective.tau.")


def test_a_pretrained_encoder_of_photos_keeps_its_batchnorm_and_trains_gently_and_briefly():
    recipe = planned(init="tf_efficientnet_lite0.lora_cifar100_lt100")
    assert (recipe.fixed_batchnorm, recipe.optimizer.name, recipe.optimizer.lr) == (True, "adamw", 1e-4)
    assert recipe.training.epochs == 31 and recipe.training.clip_grad == 1.0
    assert not planned(arch="tf_efficientnet_lite0").fixed_batchnorm


def test_few_images_get_small_batches_and_many_fewer_epochs():
    assert list(map(batch_for, (20, 31, 500, 1_000, 1_024, 4_096, 10**6))) == [20, 31, 32, 32, 64, 256, 256]


def test_what_is_measured_depends_on_classes_and_test_images(flat, classes):
    without, tested, held = (
        planned(arch="cifar_resnet20", data=f"folder:{each}") for each in (flat, classes, classes / "train")
    )
    assert (without.evaluation, without.training.knn_every, without.data.holdout.fraction) == ([], None, 0)
    assert [each.protocol for each in tested.evaluation] == ["linear", "knn"]
    assert held.data.holdout.fraction == 0.2 and len(held.evaluation) == 2  # classes, a fifth to test on
    assert held.training.knn_every == 10


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, "found no recipe and no data"),
        ({"data": "digits", "init": MOCO, "arch": "resnet18"}, "found no recipe, init .* and arch resnet18"),
        ({"data": "digits", "arch": "resnet81"}, 'unknown architecture "resnet81"'),
        ({"data": "digits", "arch": "resnet18.a1_in1k"}, "backbone.arch"),
        ({"data": "digits", "arch": "resnet18", "objective": "moko"}, "expected moco or simclr"),
        ({"recipe": CE, "init": MOCO}, "init.* found beside a recipe"),
    ],
)
def test_each_missing_piece_is_one_clear_error(arguments, expected):
    with pytest.raises(ZooError, match=expected):
        zoo.pretrain(**arguments)


def test_test_images_that_were_trained_on_are_warned_of(classes):
    shutil.copyfile(classes / "train" / "a" / "4.png", classes / "val" / "a" / "1.png")
    with pytest.warns(ZooWarning, match="1 of the 2 test images are training images too"):
        zoo.evaluate(MOCO, "knn", f"folder:{classes}")
