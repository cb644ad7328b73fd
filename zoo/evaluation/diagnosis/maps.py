"""Maps: which classes an encoder holds to be alike, and where its features lie."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from zoo.evaluation.diagnosis.overlay import STACKED, choose, heading, no_look, seen, stack, told
from zoo.evaluation.diagnosis.subject import Subject, counts_of
from zoo.evaluation.figures.class_map import MOST_DRAWN, cluster, column_heights, counts_shown, draw_in_column
from zoo.evaluation.figures.feature_map import draw_feature_map, map_features
from zoo.evaluation.series import Array
from zoo.functional import class_means


class _Means(NamedTuple):
    """Vectors of classes, their similarity, and what they are."""

    similarity: Array
    names: list[str]
    counts: list[int]
    what: str


def _vectors(subject: Subject) -> _Means | None:
    """Return the learned centers; without, the class means of features, from which their mean is taken."""
    if subject.centers is not None:
        similarity = subject.centers.similarity().detach().double().cpu().numpy()
        counts = subject.centers.class_counts.tolist()
        return _Means(similarity, list(subject.class_names), counts, "the learned class centers")
    if subject.look is None:
        return None
    look = subject.look
    classes = len(look.class_names)
    present = torch.bincount(look.labels, minlength=classes) > 0
    means = F.normalize(class_means(look.features, look.labels, classes)[present], dim=1)
    unit = F.normalize(means - means.mean(dim=0), dim=1).double()
    names = [name for name, there in zip(look.class_names, present.tolist(), strict=True) if there]
    counts = torch.as_tensor(counts_of(subject)).long()[present].tolist()
    what = "for want of centers, the classes' mean features, less the mean of these"
    return _Means((unit @ unit.T).clamp(-1, 1).numpy(), names, counts, what)


def _lacks_classes(subject: Subject) -> str | None:
    if subject.centers is None and subject.look is None:
        return f"no centers, and {no_look(subject)}"
    if subject.centers is not None or subject.look is None:
        classes = len(subject.class_names)
    else:
        classes = len({*subject.look.labels.tolist()})
    if classes < 2:
        return "one class"
    if classes > MOST_DRAWN:
        return f"{classes:,} classes, at most {MOST_DRAWN:,} are drawn"
    if subject.centers is not None and not bool(subject.centers.weight.isfinite().all()):
        return "its centers hold NaN or infinity"
    return None


def plot_centers(subjects: Sequence[Subject], paths: Sequence[Path]) -> str:
    """Draw which classes are alike, by centers or mean features; return the caption.

    Of a group with several seeds, its first subject.

    Raises:
        DataError: where no subject has either.
    """
    chosen = choose(subjects, _lacks_classes, STACKED)
    drawn = [group.subjects[0] for group in chosen.groups]
    vectors = [found for subject in drawn if (found := _vectors(subject)) is not None]
    order = cluster(vectors[0].similarity)
    shared = all(each.names == vectors[0].names for each in vectors)
    orders = [order if shared else cluster(each.similarity) for each in vectors]
    groups = [group.name for group in chosen.groups]
    caption = f"Cosine similarity of {told([(n, v.what) for n, v in zip(groups, vectors, strict=True)])}. "
    if any(s.centers is None for s in drawn):
        caption += f"Means over {seen([s for s in drawn if s.centers is None])}. "
    trained = [s for s in drawn if s.centers is not None]
    if trained:
        seeds = ", ".join(dict.fromkeys(str(s.seed) for s in trained if s.seed is not None))
        caption += f"Centers trained on {' / '.join(dict.fromkeys(s.data for s in trained))}"
        caption += f", seed {seeds}. " if seeds else ". "
    classes = told([(n, f"{len(v.names):,} classes") for n, v in zip(groups, vectors, strict=True)])
    caption += f"{classes}; order: average linkage"
    caption += f" of {groups[0]}. " if len(drawn) > 1 and shared else ". "
    bracketed = any(counts_shown(each.counts, narrow=True) for each in vectors)
    caption += "In brackets: training images. " if bracketed else ""
    several = len(chosen.subjects) > len(chosen.groups)
    caption += "Of each group one seed is drawn. " if several else ""
    caption = (caption + chosen.left_out).strip()
    title = heading("Which classes are alike", chosen.groups)
    panels = [column_heights(each.names, each.counts) for each in vectors]
    heights = [height for each in panels for height in each]
    with stack(paths, heights, caption, title) as axes_of:
        free = iter(axes_of)
        for group, found, own, each in zip(chosen.groups, vectors, orders, panels, strict=True):
            mine = [next(free) for _ in each]
            draw_in_column(mine, found.similarity, own, found.names, found.counts)
            if len(drawn) > 1:
                mine[0].set_title(group.name, loc="left")
    return caption


def plot_map(subjects: Sequence[Subject], paths: Sequence[Path]) -> str:
    """Draw features in two dimensions with the learned centers among them; return the caption.

    Of a group with several seeds, its first subject.

    Raises:
        DataError: where no subject has a look.
    """
    chosen = choose(subjects, no_look, STACKED)
    drawn = [group.subjects[0] for group in chosen.groups]
    maps = []
    for subject in drawn:
        look = subject.look
        assert look is not None  # chosen for it
        features = look.features * look.norms[:, None]  # as the encoder gives them
        centers = subject.centers
        if centers is not None and len(centers.weight) != len(look.class_names):
            centers = None
        if centers is not None and int(centers.class_counts.min()) < 0 and len(look.class_names) > 10:
            centers = centers._replace(class_counts=look.class_counts)
        maps.append(map_features(features, look.labels, look.class_names, centers, seed=look.seed))
    groups = [group.name for group in chosen.groups]
    caption = told([(name, each.caption) for name, each in zip(groups, maps, strict=True)])
    stars = [(name, each.star_words) for name, each in zip(groups, maps, strict=True) if len(each.stars)]
    caption += f"; stars: {told(stars)}" if stars else ""
    without = [name for name, each in zip(groups, maps, strict=True) if not len(each.stars)]
    caption += f" ({', '.join(without)}: no centers)" if stars and without else ""
    caption += f". {seen(drawn)}. "
    several = len(chosen.subjects) > len(chosen.groups)
    caption += "Of each group one seed is drawn. " if several else ""
    caption = (caption + chosen.left_out).strip()
    title = heading("A map of features", chosen.groups)
    with stack(paths, [3.3] * len(drawn), caption, title) as axes_of:
        for axes, group, mapped in zip(axes_of, chosen.groups, maps, strict=True):
            if len(drawn) > 1:
                axes.set_title(group.name, loc="left")
            draw_feature_map(axes, mapped)
    return caption
