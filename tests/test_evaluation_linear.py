from __future__ import annotations

import inspect
import time

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from zoo.evaluation.solvers import Problem

from zoo.data.stratified import stratified_split
from zoo.errors import DataError, ZooError
from zoo.evaluation.linear import fit_linear
from zoo.seeding import derive_seed


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return torch.tensor(x[:1200]), torch.tensor(y[:1200]), torch.tensor(x[1200:]), torch.tensor(y[1200:])


def sklearn_fit(x, y, l2, balanced=False):
    scaler = StandardScaler().fit(x)
    model = LogisticRegression(
        C=1 / (l2 * len(x)), tol=1e-9, max_iter=20000, class_weight="balanced" if balanced else None
    )
    return scaler, model.fit(scaler.transform(x), y)


def logits_like(weight, bias, x):
    """Logits up to what softmax ignores."""
    logits = x @ weight.T + bias
    return logits - logits.mean(dim=1, keepdim=True)


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-4])
def test_lbfgs_finds_the_coefficients_of_sklearn(digits, l2, balanced):
    x, y, test, _ = digits
    keep = torch.cat([(y == c).nonzero()[:, 0][: 100 // (c + 1)] for c in range(10)])  # a long tail
    x, y = x[keep], y[keep]
    ours = fit_linear(x, y, 10, l2_grid=[l2], balanced=balanced)
    scaler, theirs = sklearn_fit(x.numpy(), y.numpy(), l2, balanced)
    coefficients = ours.weight * torch.tensor(scaler.scale_)
    expected = torch.tensor(theirs.coef_)
    torch.testing.assert_close(
        coefficients - coefficients.mean(0), expected - expected.mean(0), atol=2e-4, rtol=2e-3
    )
    logits = torch.tensor(theirs.decision_function(scaler.transform(test.numpy())))
    torch.testing.assert_close(
        logits_like(ours.weight, ours.bias, test), logits - logits.mean(1, keepdim=True), atol=5e-3, rtol=5e-3
    )
    assert ours.converged


def test_float32_predicts_as_float64(digits):
    x, y, test, _ = digits
    double = fit_linear(x, y, 10, l2_grid=[1e-3])
    single = fit_linear(x.float(), y, 10, l2_grid=[1e-3])
    assert (double.weight.dtype, single.weight.dtype) == (torch.float64, torch.float32)
    assert (double.predict(test) == single.predict(test)).float().mean() > 0.995
    assert single.converged


@pytest.mark.parametrize("balanced", [False, True])
def test_sgd_comes_near_the_minimum(digits, balanced):
    x, y, test, _ = digits
    exact = fit_linear(x, y, 10, l2_grid=[1e-2], balanced=balanced)
    sgd = fit_linear(x, y, 10, l2_grid=[1e-2], balanced=balanced, solver="sgd")
    assert (sgd.predict(test) == exact.predict(test)).float().mean() > 0.99
    longer = fit_linear(x, y, 10, l2_grid=[1e-2], balanced=balanced, solver="sgd", max_iter=1000)
    std = x.std(dim=0)
    torch.testing.assert_close(longer.weight * std, exact.weight * std, atol=0.02, rtol=0)


def test_the_strength_is_the_one_that_an_independent_search_finds_on_the_validation_part(digits):
    x, y, _, _ = digits
    keep = torch.arange(0, 1200, 5)
    noise = torch.randn(240, 64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x, y = x[keep] + 8 * noise, y[keep]  # noise makes the strength matter
    grid = [10.0, 1.0, 0.1, 1e-2, 1e-3]
    ours = fit_linear(x, y, 10, l2_grid=grid, seed=3, select="accuracy")
    rest, held = stratified_split(y, 0.2, derive_seed("linear", 3, "split"))
    scores = {}
    for l2 in grid:
        scaler, model = sklearn_fit(x[rest].numpy(), y[rest].numpy(), l2)
        scores[l2] = 100 * model.score(scaler.transform(x[held].numpy()), y[held].numpy())
    assert ours.validation_scores == pytest.approx(scores)
    assert ours.l2 == max(scores, key=scores.get)
    assert ours.l2 not in (grid[0], grid[-1])  # there was a choice to make
    whole = fit_linear(x, y, 10, l2_grid=[ours.l2])  # and then all of the training set is fitted
    torch.testing.assert_close(ours.weight, whole.weight, atol=1e-4, rtol=1e-3)


def test_validation_images_are_not_fitted():
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(300, 400, generator=g), torch.randint(0, 10, (300,), generator=g)
    probe = fit_linear(x, y, 10)  # random labels: any fitted image would be right, any other is chance
    assert max(probe.validation_scores.values()) < 30
    assert (probe.predict(x) == y).float().mean() > 0.5


def test_nothing_about_the_test_set_reaches_the_choice(digits):
    x, y, test, truth = digits
    assert "test" not in " ".join(inspect.signature(fit_linear).parameters)
    # A test set in which another strength would win: the choice stays that of the validation part.
    probe = fit_linear(x, y, 10, l2_grid=[100.0, 1e-2])
    permuted = truth[torch.randperm(len(truth), generator=torch.Generator().manual_seed(0))]
    strong = fit_linear(x, y, 10, l2_grid=[100.0]).predict(test)
    leaked = torch.where(torch.arange(len(truth)) % 2 == 0, strong, permuted)
    assert (strong == leaked).float().mean() > (probe.predict(test) == leaked).float().mean()
    assert probe.l2 == 1e-2


def test_equal_arguments_give_equal_bits_and_the_seed_decides_the_split(digits):
    x, y, _, _ = digits
    for solver in ("lbfgs", "sgd"):
        a, b = (fit_linear(x[:300].float(), y[:300], 10, solver=solver, max_iter=20) for _ in range(2))
        assert torch.equal(a.weight, b.weight)
        assert torch.equal(a.bias, b.bias)
    assert not torch.equal(stratified_split(y, 0.2, 0)[1], stratified_split(y, 0.2, 1)[1])


def test_the_split_is_stratified_and_small_classes_keep_a_fitted_image():
    counts = [50, 10, 3, 2, 1]
    labels = torch.tensor(np.random.default_rng(0).permutation(np.repeat(range(5), counts)))
    rest, held = stratified_split(labels, 0.2, 0)
    assert torch.bincount(labels[held], minlength=5).tolist() == [10, 2, 1, 1, 0]
    assert torch.bincount(labels[rest], minlength=5).tolist() == [40, 8, 2, 1, 1]
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(66))
    rest, held = stratified_split(labels, 0.99, 0)
    assert torch.bincount(labels[rest], minlength=5).min() == 1


def test_selecting_by_balanced_accuracy_weighs_the_tail():
    g = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 400 + [1] * 20)
    x = torch.randn(420, 20, generator=g) + 1.2 * (y == 1)[:, None] * (torch.arange(20) < 2)
    grid = [100.0, 1e-3]
    assert fit_linear(x, y, 2, l2_grid=grid, select="balanced_accuracy").l2 == 1e-3
    scores = fit_linear(x, y, 2, l2_grid=grid, select="balanced_accuracy").validation_scores
    assert scores[100.0] == 50.0  # a constant prediction
    scores = fit_linear(x, y, 2, l2_grid=grid, select="accuracy").validation_scores
    assert scores[100.0] == pytest.approx(100 * 80 / 84)


def test_of_equal_scores_the_stronger_penalty_wins():
    x, y = torch.tensor([[-1.0], [1.0]]).repeat(20, 1), torch.tensor([0, 1]).repeat(20)
    assert fit_linear(x, y, 2, l2_grid=[1e-3, 1.0, 1e-2]).l2 == 1.0


def test_a_class_absent_from_training_is_never_predicted(digits):
    x, y, test, _ = digits
    keep = (y != 3) & (y != 9)
    probe = fit_linear(x[keep], y[keep], 11, l2_grid=[1e-2])
    assert set(probe.predict(test).tolist()) == set(range(9)) - {3}
    assert torch.isneginf(probe.bias[[3, 9, 10]]).all()
    assert probe.weight[[3, 9, 10]].abs().max() == 0
    other = torch.arange(11)[:9][torch.arange(9) != 3]
    scaler, theirs = sklearn_fit(x[keep].numpy(), y[keep].numpy(), 1e-2)
    assert (
        other[probe.logits(test)[:, other].argmax(1)].numpy() == theirs.predict(scaler.transform(test))
    ).all()


def test_standardisation_is_that_of_sklearn_and_rounding_is_no_signal():
    g = torch.Generator().manual_seed(0)
    x = 5 + 3 * torch.randn(9, 4, generator=g, dtype=torch.float64)
    problem = Problem.standardised(x, torch.arange(9) % 2, 2, balanced=False)
    np.testing.assert_allclose(problem.x[:, :-1], StandardScaler().fit_transform(x), atol=1e-12)
    constant = torch.full((1000, 1), 1000.1)
    constant[::2] = constant[::2].nextafter(torch.tensor(2000.0))  # what accumulated rounding leaves
    assert (
        Problem.standardised(constant, torch.arange(1000) % 2, 2, balanced=False).x[:, 0].abs().max() < 1e-3
    )


def test_constant_and_unscaled_features_do_no_harm(digits):
    x, y, test, _ = digits
    scale = torch.logspace(-6, 6, 64, dtype=torch.float64)
    plain = fit_linear(x, y, 10, l2_grid=[1e-2])
    odd = fit_linear(x * scale + 3 * scale, y, 10, l2_grid=[1e-2])
    torch.testing.assert_close(odd.logits((test + 3) * scale), plain.logits(test), atol=1e-3, rtol=1e-3)
    constant = torch.full((len(x), 1), 0.1)
    with_constant = fit_linear(torch.cat([x.float(), constant], 1), y, 10, l2_grid=[1e-2])
    assert with_constant.weight[:, -1].abs().max() < 1e-6


def test_a_single_image_of_a_class_is_fitted():
    g = torch.Generator().manual_seed(0)
    x = torch.cat([torch.randn(30, 4, generator=g), torch.full((1, 4), 8.0)])
    y = torch.tensor([0] * 15 + [1] * 15 + [2])
    probe = fit_linear(x, y, 3, l2_grid=[1e-2, 1e-3])
    assert probe.predict(torch.full((1, 4), 7.0)).tolist() == [2]


def test_it_works_inside_no_grad_and_inference_mode(digits):
    x, y, _, _ = digits
    expected = fit_linear(x[:300], y[:300], 10, l2_grid=[1e-2]).weight
    with torch.inference_mode():
        inside = fit_linear(x[:300] * 1, y[:300], 10, l2_grid=[1e-2]).weight
    assert torch.equal(expected, inside)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": torch.zeros(20, dtype=torch.int64)}, "found only class 0 in training"),
        ({"labels": torch.arange(20), "num_classes": 20}, "20 classes has a single training image"),
        ({"labels": torch.arange(20) % 3 - 1}, "found values from -1 to 1, expected 0 to 1"),
        ({"labels": torch.arange(19) % 2}, "expected one integer for each of 20 rows"),
        ({"features": torch.full((20, 3), float("inf"))}, "20 of 20 rows hold NaN or infinity"),
        ({"features": torch.zeros(20, 3, dtype=torch.int64)}, "found int64"),
        ({"select": "balanced_acuracy"}, 'Did you mean "balanced_accuracy"'),
        ({"solver": "lbgfs"}, 'Did you mean "lbfgs"'),
        ({"l2_grid": []}, "l2_grid"),
        ({"l2_grid": [0.0]}, "l2_grid"),
        ({"validation_fraction": 1.0}, "validation_fraction 1.0"),
        ({"max_iter": 0}, "max_iter 0"),
    ],
)
def test_mistakes_are_named(change, message):
    arguments = {"features": torch.randn(20, 3), "labels": torch.arange(20) % 2, "num_classes": 2} | change
    with pytest.raises((DataError, ZooError), match=message):
        fit_linear(**arguments)


def test_two_thousand_features_of_dimension_512_take_seconds():
    g = torch.Generator().manual_seed(0)
    means = torch.randn(20, 512, generator=g)
    y = torch.arange(2000) % 20
    x = torch.relu(means[y] + 3 * torch.randn(2000, 512, generator=g))
    begin = time.process_time()
    probe = fit_linear(x, y, 20)
    assert time.process_time() - begin < 30
    assert (probe.predict(x) == y).float().mean() > 0.9
