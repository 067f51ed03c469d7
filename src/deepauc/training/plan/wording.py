"""Every sentence that explains a decision, in one place: templates, filled with the facts that a decision rests on.

A field of a template may have a format of ours: `{rows:~row}` gives "1 row" or "2 rows", `{epochs:~sum}` "31 + 11",
`{took:~time}` "40 s" or "3.5 min", `{pace:~pace}` "0.2 and 0.1 s per step", `{shares:~shares}` "70 % train, ...".
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deepauc.names import counted
from deepauc.training.plan.decision import Decision

COMMON = {"asked for": "You set it."}

SENTENCES: Mapping[str, Mapping[str, str]] = {
    "parts": {
        "own split": "The {source} has its own split.",
        "own test": "The {source} has its own test part. Validation is drawn from its training part: {shares:~shares}, "
        "with about the same share of positives in both.",
        "drawn": "The {source} has no split, so one is drawn: {shares:~shares}, with about the same share of "
        "positives in each part.",
        "one per group": "Each {group} is in one part only.",
        "identical together": "Identical images are in one part only.",
        "own seed": "The split uses its own seed ({split_seed}); --seed changes only the training.",
        "no test": "There is no test part, so the validation AUC may be too good: it has chosen the epoch.",
        "unlabelled left out": "Left out of validation and test, because they have no label: {left_out:~row}.",
        "of a run": "Each row is in the part that it has in {run}.",
        "not scored": "In no part, because that run has not scored them: {left:~row}.",
        "gone": "Not in this table, but in that run: {gone:~row}.",
    },
    "folds": {
        "few": "Fewer than {below} rows ({rarer}) are of the rarer class, too few for one split. Each row is scored by "
        "a network that was not trained on it.",
        "few groups": "Fewer than {below} {group}s ({rarer}) have the rarer class, too few for one split. Each row is "
        "scored by a network that was not trained on it.",
        "column": "The column {column} names the fold of each row.",
        "one per group": "Each {group} is in one fold only.",
        "identical together": "Identical images are in one fold only.",
        "own seed": "The folds use the seed of the split ({split_seed}); --seed changes only the training.",
        "own test": "The test part is in no fold. The average of all networks is judged on it once.",
        "fixed": "Within a fold nothing is chosen: the length of training is fixed.",
    },
    "networks per fold": {
        "time left": "There is time for more than one. They have other random seeds and are averaged. All take "
        "about {takes:~time} of the {minutes:~minute} that you allow. At most {most} are trained.",
        "no time": "A second one, with another random seed, would take more than the {minutes:~minute} that you allow.",
    },
    "metadata": {
        "encoded": "They become {features:~feature}, encoded by the training rows alone. Numbers are standardised; "
        "each category, and an empty cell, has a feature of its own. A category that is not in the training rows "
        "counts as an empty cell.",
        "codes": "If the numbers of a column are codes, name it with --category-column.",
        "beside images": "A small network is trained on them, in addition to the one on the images. They join the "
        "model only if that is better by one paired standard error on held-out rows.",
    },
    "recipe": {"in file": "The config file has a complete recipe."},
    "image size": {
        "images": "The images have this size.",
        "files": "The files have this size.",
        "median": "This is the median of the files, which have {sizes:~size}, most often {common:~size_of} "
        "({count:~file}).",
        "enlarged": "The files have {sizes:~size}, most often {common:~size_of} ({count:~file}). They are enlarged, "
        "because the pretrained weights know larger images.",
        "shrunk": "The files have {sizes:~size}, most often {common:~size_of} ({count:~file}). On a {device} the "
        "longer side is shrunk to {most} pixels; --image-size asks for more.",
    },
    "inputs": {
        "expected": "Each channel loses {mean:~numbers} and is divided by {std:~numbers}, of values from 0 to 1. The "
        "run folder and exported files keep these numbers.",
    },
    "backbone": {
        "frozen": "Only the last layer is trained. Each image passes the other layers once, so this takes little time "
        "on a CPU; --backbone trained fine-tunes all layers.",
        "trained": "All layers are trained; --backbone frozen trains the last layer only.",
    },
    "weights": {
        "package": "They come from the installed package {origin}.",
        "Hugging Face's cache": "They come from {origin}, in Hugging Face's cache on this machine.",
        "torchvision's cache": "They come from torchvision's cache on this machine ({file}).",
        "file": "They come from {origin}.",
        "licence": "Licence: {licence}.",
        "own licence": "Their licence is not known to deepauc.",
    },
    "network": {
        "pretrained": "It starts from ImageNet weights, which an extra of deepauc brings, and is small enough for a "
        "CPU.",
        "numbers": "A table of numbers needs no larger network.",
        "medical": "The paper uses this network for medical images. It starts from random weights, because deepauc "
        "downloads nothing; --pretrained starts from weights that are on this machine.",
        "small images": "It is made for images of up to {side} pixels and takes {spent:.0%} of the training budget.",
        "in time": "It is made for images of up to {side} pixels and takes {spent:.0%} of your minutes, measured here.",
        "slow here": "It is small and fast: a ResNet20 would take {spent:.1f} times your minutes, measured here.",
        "slow": "It is small and fast: a ResNet20 would take {spent:.1f} times the training budget of a CPU.",
    },
    "pooling": {
        "bags": "Each row is a bag, of {mean:.1f} images on average. It has one score, from those of all its images.",
    },
    "images per bag": {
        "all": "A training step sees all images of its bags; the largest bag has {largest:~image}.",
        "drawn": "The largest bag has {largest:~image}. Each training step draws {most} of such a bag; scores are "
        "always of all images.",
    },
    "batch size": {
        "rows": "Chosen for {rows:~row}: about {steps:~step} per epoch, with batches of {least} to {most} rows.",
        "few negatives": "The training part has only {negatives:~negative}.",
    },
    "positives per batch": {
        "as they come": "{share:.1%} of the rows are positive; cross-entropy takes random batches.",
        "share": "{share:.1%} of the rows are positive.",
        "rarest share": "{share:.1%} of the rows are positive for the rarest label; the labels take turns from batch "
        "to batch.",
        "few positives": "The training part has only {positives:~positive}, and none should be in a batch twice.",
        "too few": "A random batch would hold {plain:.1f} positives, too few to learn from and to rank against.",
        "too few negatives": "A random batch would hold {plain:.1f} negatives, too few to rank against.",
        "same in each": "Every batch has this share.",
    },
    "first stage": {
        "bags": "The rows are bags, and the stage compares single images.",
        "pretrained": "The network starts from pretrained weights.",
        "over budget": "It takes {cost:.1e} multiply-adds, more than the {device} budget of {budget:.0e} leaves; "
        "--minutes M shortens it.",
        "class is large": "Each class has {rarer:~row} or more; the stage is for up to {most:,} rows of the rarer "
        "class.",
        "few images": "The training part has only {images:~image}; the stage did not help with few, and is for "
        "{least:,} or more.",
        "large images": "The images have {side} pixels; the stage was tested on up to {most}.",
        "few epochs": "The stage needs {needed:~epoch}, and --epochs {epochs} is for each stage.",
        "no budget": "The other stages leave {fitting:~epoch} for it of the {device} budget of {budget:.0e} "
        "multiply-adds; it needs {needed}.",
        "no minutes": "In {minutes:~minute} the other stages would leave an estimated {fitting:~epoch} for it; it "
        "needs {needed}.",
        "no time": "{minutes:~minute} would not be enough for the other stages and {needed:~epoch} of it, at "
        "{pace:~pace}, measured here: that takes {takes:~minute}.",
        "would allow": "{options:~or} would allow it.",
        "anyway": "--first-stage contrastive trains it anyway.",
        "shorter": "--first-stage contrastive trains a shorter one.",
        "few of a class": "The rarer class has only {rarer:~row}, and this stage learns features from all "
        "{images:~training image}. It raised the validation AUC where that was measured (202 positives of 20,202 small "
        "photographs, 888 of 8,888); --first-stage none leaves it out.",
    },
    "views": {
        "ignored": "The first stage learns to ignore these changes. There are no mirror images: left and right may "
        "matter, as in a chest X-ray.",
        "grey": "There are no changes of colour, because the images are grey.",
        "crop": "If a crop may lose the finding, use --first-stage none.",
    },
    "epochs": {
        "steps": "This is {steps:~sum} steps and {cost:.1e} multiply-adds.",
        "frozen": "This is {steps:~sum} steps of the last layer alone.",
        "first stage": "The first stage takes {first_steps:~step} and {first_cost:.1e} multiply-adds on top.",
        "before minutes": "They are shortened to {minutes:~minute} next.",
        "over budget": "That is over the {device} budget of {budget:.0e}, but fewer epochs would teach little.",
        "budget": "The {device} budget of {budget:.0e} allows no more.",
        "in time": "They take about {takes:~time} of the {minutes:~minute} that you allow, at {pace:~pace}, measured "
        "here. The report takes time on top.",
        "in time with tuning": "They take about {takes:~time} of the {minutes:~minute} that you allow, tuning of "
        "{tune:~pair} included, at {pace:~pace}, measured here. The report takes time on top.",
        "in time per fold": "All {folds:~fold} together take about {takes:~time} of the {minutes:~minute} that you "
        "allow, at {pace:~pace}, measured here. The report takes time on top.",
        "cut": "Shortened: the full {wanted:~sum} epochs would take about {whole:~time} (--minutes {allow:g}).",
    },
    "stages": {
        "both": "Cross-entropy learns the features; the AUC margin loss then improves the ranking (section 3.4 of the "
        "paper).",
        "objective": "You asked for this objective. Cross-entropy learns the features first.",
        "no budget": "Its {wanted:~epoch} leave too little of the budget for an AUC stage.",
        "no time": "{minutes:~minute} would not be enough for all of cross-entropy and {needed:~epoch} of an AUC "
        "stage, at {pace:~pace}, measured here: that takes {takes:~minute}.",
        "shared is worse": "Two shortened stages ranked worse on one of five data sets and no better on the others.",
        "more time": "--minutes M gives more time; --auc-stage always shortens both stages.",
        "always": "--auc-stage always shortens both stages.",
    },
    "learning rate": {
        "tried": "In our tests 0.001 ranked as well and 0.005 worse.",
        "frozen": "Only the last layer is trained, with a weight decay of {decay:g}.",
        "trained": "The pretrained layers have {backbone:g} times this rate.",
    },
    "learning rates": {
        "frozen": "Only the last layer is trained, with a weight decay of {decay:g} in stage 1.",
        "trained": "The pretrained layers have {backbone:g} times these rates.",
        "sigmoid": "Scores pass a sigmoid first, because raw scores diverge at the second rate.",
        "paper": "The second rate and its steps are the paper's. Scores pass a sigmoid first, because raw scores "
        "diverge at this rate.",
        "not tuned": "The second rate was not tuned for this objective; a config file can change it. Scores pass a "
        "sigmoid first.",
    },
    "margin": {
        "within reach": "Behind a sigmoid the mean scores of the classes are at most 1 apart, so this margin can be "
        "reached; it is in the paper's range. --tune N tries others on validation.",
        "reachable": "Behind a sigmoid two scores are at most 1 apart, so this margin can be reached.",
    },
    "gamma": {"middle": "This is 1/500, the middle of the paper's grid. --tune N tries others on validation."},
    "selection": {
        "no validation": "There is no validation part.",
        "few": "Validation has only {fewest:~row} of the rarer class, too few to tell one epoch from the next.",
        "enough": "Validation has at least {fewest:~row} of each class, so its AUC can choose the epoch. It is a "
        "little too good for that reason; the test part has no say.",
        "guard": "The AUC stage is kept only if it is not worse than cross-entropy on validation.",
        "own metric": "That stage is judged by {metric}.",
    },
    "augmentation": {
        "careful": "It is careful, because a table does not say what may be changed: no mirror images (left and right "
        "may matter, as in a chest X-ray) and no colours. A config file can ask for more.",
    },
    "test-time augmentation": {
        "slower": "Each copy makes prediction that much slower. --tta 8 averages eight copies, which ranked a little "
        "better in our tests.",
        "time left": "There is time for them: all takes about {takes:~time} of the {minutes:~minute} that you allow. "
        "They ranked a little better in our tests. A prediction takes {value} times as long; --tta 0 leaves them out.",
    },
    "unlabelled rows": {
        "learns": "That stage learns from images alone, of the training part only.",
        "no stage": "No stage of this recipe learns without labels. A self-supervised stage could use {may_join:~row}.",
        "none": "None of them is in the training part.",
        "held-out group": "Never used, because their {group} is in validation or test: {of_held_out_patient:~row}.",
        "held out": "Never used, because the table puts them, or an identical image, into validation or test: "
        "{held_out:~row}.",
    },
    "tuned": {
        "best": "Best of {tried:~pair} on validation, which has {positives:~positive}: the differences are noisy.",
        "trials": "AUC of each (margin, gamma): {trials:~trials}.",
    },
}


@dataclass(frozen=True, kw_only=True)
class Told:
    """A decision in words: `name: value`, and the sentences that give the reason."""

    name: str
    value: str
    reason: str


def told(decision: Decision) -> Told:
    """The decision in plain English."""
    known = {**COMMON, **SENTENCES[decision.name]}
    facts = {"value": decision.value, **decision.rests_on}
    reason = " ".join(_FORMATTER.vformat(known[key], (), facts) for key in decision.reason)
    return Told(name=decision.name, value=_value(decision), reason=reason)


def decision_record(decision: Decision) -> dict[str, Any]:
    """What run.json keeps: the words, and the facts."""
    said = told(decision)
    facts = dict(decision.rests_on)
    return {"name": said.name, "value": said.value, "reason": said.reason, "rests_on": facts}


def time_text(seconds: float) -> str:
    """`40 s` or `3.5 min`."""
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"


def pace_text(seconds: Sequence[float]) -> str:
    """`0.5, 0.1 and 0.2 s per step`."""
    *before, last = [f"{one:.2g}" for one in seconds]
    return (f"{', '.join(before)} and {last}" if before else last) + " s per step"


def sum_text(counts: Sequence[int]) -> str:
    """`31 + 11`."""
    return " + ".join(f"{count:,}" for count in counts)


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "~sum": sum_text,
    "~time": time_text,
    "~pace": pace_text,
    "~shares": lambda shares: ", ".join(f"{share:.0%} {part}" for part, share in shares.items()),
    "~size_of": lambda size: "{} x {}".format(*size),
    "~or": " or ".join,
    "~numbers": lambda numbers: ", ".join(f"{one:.4g}" for one in dict.fromkeys(numbers)),
    "~trials": lambda trials: ", ".join(f"({margin:g}, {gamma:.3g}) {auc:.3f}" for margin, gamma, auc in trials),
}


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in _FORMATS:
            return _FORMATS[format_spec](value)
        if format_spec.startswith("~"):
            if isinstance(value, float):
                return f"{value:g} {format_spec[1:]}{'s' * (value != 1)}"
            return counted(value, format_spec[1:])
        return str(super().format_field(value, format_spec))


_FORMATTER = _Formatter()


def _value(decision: Decision) -> str:
    value, facts = decision.value, decision.rests_on
    if decision.name in _VALUES:
        return _VALUES[decision.name](value, facts)
    if isinstance(value, Mapping):
        return ", ".join(f"{part} {count:,}" for part, count in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)


def _metadata(columns: Mapping[str, int], _: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} ({'1 category' if count == 1 else f'{count} categories'})" if count else f"{name} (a number)"
        for name, count in columns.items()
    )


def _positives(quota: int | None, facts: Mapping[str, Any]) -> str:
    return "as they come" if quota is None else f"{quota} of {facts['batch']}, in {facts['where']}"


def _first_stage(kind: str, facts: Mapping[str, Any]) -> str:
    if kind == "none":
        return kind
    return f"{kind}, before the others: batch size {facts['batch']}, learning rate {facts['lr']:.2g}"


def _augmentation(shift: int, facts: Mapping[str, Any]) -> str:
    return f"shifts of {counted(shift, 'pixel')}, rotations of {facts['rotation']:g} degrees, zoom by 5 %"


_VALUES: Mapping[str, Callable[[Any, Mapping[str, Any]], str]] = {
    "metadata": _metadata,
    "image size": lambda size, _: "{} x {}".format(*size),
    "backbone": lambda kind, _: {"frozen": "frozen", "trained": "fine-tuned"}[kind],
    "network": lambda name, _: {"mlp": "MLP, 64 and 32 hidden units, standardised inputs"}.get(name, name),
    "positives per batch": _positives,
    "first stage": _first_stage,
    "views": lambda colours, _: (
        "crops of a fifth of the area or more, changes of brightness and contrast"
        + (", changes of colour, some images in grey" if colours == "colour" else "")
    ),
    "epochs": lambda counts, _: sum_text(counts),
    "stages": lambda names, _: (
        f"cross-entropy, then {names[1]} with a fresh last layer" if len(names) > 1 else "cross-entropy alone"
    ),
    "learning rate": lambda rate, _: f"{rate:g} (AdamW) with cosine decay",
    "learning rates": lambda rates, facts: (
        f"{rates[0]:g} (AdamW) with cosine decay, then {rates[1]:g} ({facts.get('optimizer', 'PESG')}), divided by "
        "10 at one half and three quarters"
    ),
    "augmentation": _augmentation,
    "test-time augmentation": lambda copies, _: (
        f"mean over {copies} copies, augmented as in training" if copies else "none"
    ),
    "unlabelled rows": lambda joined, facts: f"{joined:,} of {facts['rows']:,} join the self-supervised stage",
    "tuned": lambda pair, _: "margin {:g}, gamma {:.3g}".format(*pair),
}
