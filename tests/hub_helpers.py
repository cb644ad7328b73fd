"""What the tests of publishing share: where to push, and a change to make."""

NAME = "cifar_resnet20.paco_test"
REPO = f"alice/{NAME}"
EVALUATION = {
    **{"protocol": "knn", "data": "digits", "split": "test", "metric": "accuracy", "value": 91.5},
    **{"metrics": {"accuracy": 91.5}, "seed": None, "date": None},
}
