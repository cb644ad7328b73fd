"""`zoo.list_hub`: the releases of a user or organisation on the Hub. Imports no torch."""

from __future__ import annotations

from datetime import date
from typing import NamedTuple

from huggingface_hub import EvalResult, HfApi, ModelInfo, constants, get_session
from huggingface_hub.repocard_data import model_index_to_eval_results

from zoo.errors import ReleaseError
from zoo.hub.names import check_repo_id
from zoo.hub_client import talking
from zoo.release.schema import LIBRARY


class HubRelease(NamedTuple):
    """A release on the Hub, as its card's metadata describe it; what they do not say is empty.

    Attributes:
        repo_id: the repository, `"org/name"`, which `zoo.load` takes.
        objective: the objective's name.
        data: the data set of the figure.
        accuracy: the card's first accuracy in percent and its protocol, e.g. `"93.78 knn"`.
        updated: the day of the last commit.
        private: whether a token is needed.
    """

    repo_id: str
    objective: str
    data: str
    accuracy: str
    updated: date | None
    private: bool


def list_hub(org: str, *, token: str | bool | None = None) -> list[HubRelease]:
    """Return the releases of this project that `org` has on the Hub, sorted by name.

    They are found by the tag `contrastive-zoo` of their cards. Private ones are among them when the token
    opens them.

    Raises:
        ReleaseError: when `org` can be no name on the Hub, or the Hub cannot be asked.
    """
    check_repo_id(f"{org}/name")
    with talking(f'Hub namespace "{org}"', ReleaseError):
        # without a network this fails at once, and the listing only after six tries
        get_session().head(constants.ENDPOINT, timeout=constants.HF_HUB_ETAG_TIMEOUT)
        models = HfApi(token=token, library_name=LIBRARY).list_models(
            author=org, filter=LIBRARY, expand=["cardData", "lastModified", "model-index", "private"]
        )
        return sorted(map(_described, models))


def _described(model: ModelInfo) -> HubRelease:
    tags = getattr(model.card_data, "tags", None)
    tags = tags if isinstance(tags, list) and LIBRARY in tags else [LIBRARY]
    objective = tags[tags.index(LIBRARY) + 1 :][:1]  # as release/card.py writes them
    first = next((result for result in _results(model) if result.metric_type == "accuracy"), None)
    return HubRelease(
        _printable(model.id),
        _printable(*objective),
        _printable(first.dataset_name) if first else "",
        f"{_printable(first.metric_value)} {_printable(first.dataset_config).split(' ')[0]}" if first else "",
        model.last_modified.date() if model.last_modified else None,
        bool(model.private),
    )


def _results(model: ModelInfo) -> list[EvalResult]:
    results = getattr(model.card_data, "eval_results", None)
    if results is None and model.model_index:
        try:
            _, results = model_index_to_eval_results(model.model_index)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError, AttributeError):
            return []  # a card that others wrote
    return results or []


def _printable(value: object = "") -> str:
    """Return text for a terminal: one line of limited length, without control characters."""
    return "".join(letter for letter in str(value) if letter.isprintable())[:80]
