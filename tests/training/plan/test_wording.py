"""Decisions in words: singular and plural, times, and what run.json keeps of them."""

import json
import re
import string

import pytest

from deepauc.training.plan.decision import ASKED, Decision, replaced
from deepauc.training.plan.wording import SENTENCES, decision_record, told


@pytest.mark.parametrize(
    ("decision", "value", "facts"),
    [
        (
            Decision(
                name="batch size",
                value=32,
                reason=("rows",),
                rests_on={"rows": 568, "steps": 17, "least": 16, "most": 64},
            ),
            "32",
            ["568 rows", "17 steps", "16", "64 rows"],
        ),
        (Decision(name="network", value="resnet20", reason=ASKED), "resnet20", []),
        (
            Decision(name="batch size", value=2, reason=("few negatives",), rests_on={"negatives": 1}),
            "2",
            ["1 negative"],
        ),
    ],
)
def test_words(decision, value, facts):
    found = told(decision)
    assert (found.name, found.value) == (decision.name, value)
    assert [fact for fact in facts if fact not in found.reason] == []


def test_every_sentence_is_one_and_names_no_file_of_ours():
    for sentences in SENTENCES.values():
        for text in sentences.values():
            assert text[0].isupper() or text.startswith(("{", "--")), text
            assert text.endswith("."), text
            assert "results/" not in text
            assert all(name for _, name, _, _ in string.Formatter().parse(text) if name is not None), text


def test_a_record_has_the_words_and_the_facts():
    decision = Decision(
        name="epochs",
        value=(3, 1),
        reason=("in time", "cut"),
        rests_on={
            "minutes": 1.0,
            "pace": (0.5, 0.25),
            "takes": 40.0,
            "wanted": (50, 25),
            "whole": 600.0,
            "allow": 12.0,
        },
    )
    found = json.loads(json.dumps(decision_record(decision)))
    reason = found.pop("reason")
    assert re.findall(r"[\d.]*\d", reason) == ["40", "1", "0.5", "0.25", "50", "25", "10.0", "12"]
    assert found == {
        "name": "epochs",
        "value": "3 + 1",
        "rests_on": {**decision.rests_on, "pace": [0.5, 0.25], "wanted": [50, 25]},
    }


def test_a_decision_takes_the_place_of_the_one_of_its_name():
    old = (Decision(name="margin", value=0.5, reason=ASKED), Decision(name="gamma", value=0.1, reason=ASKED))
    new = Decision(name="margin", value=1.0, reason=ASKED)
    assert replaced(old, new) == (new, old[1])
