"""What the tests of publishing share: where to push, and a change to make."""

NAME = "cifar_resnet20.paco_test"
REPO = f"alice/{NAME}"
EVALUATION = {"protocol": "knn", "data": "digits", "split": "test", "metrics": {"accuracy": 91.5}}
