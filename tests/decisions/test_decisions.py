"""Decisions: twins of closed forms, promises on synthetic draws, and the command from end to end."""

import json

import numpy as np
import pytest

import dear
from dear.cli import main
from dear.data.resolve import resolve_dataset
from dear.decisions.ridge import RidgeSets
from dear.decisions.thresholds import above_strangers, least_accepted, least_probability, least_sure, score_of

BETA, RIDGE, WEIGHT, SCALE = 1.5, 0.05, 0.7, 8.0


def unit(rng, *shape):
    rows = rng.normal(size=shape)
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def drawn(rng, images, text, noise=0.6):
    labels = rng.integers(0, len(text), images)
    rows = text[labels] + noise * unit(rng, images, text.shape[1])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), labels


def refitted(images, labels, text, x):
    """The p-values of x by a refit for each assumed class and each image left out."""
    values = []
    for assumed in range(len(text)):
        features, classes = np.vstack([images, x]), np.append(labels, assumed)
        scores = []
        for one in range(len(features)):
            rest = np.arange(len(features)) != one
            known = features[rest]
            kernel = np.exp(BETA * (known @ known.T - 1)) + RIDGE * np.eye(len(known))
            dual = np.linalg.solve(kernel, np.eye(len(text))[classes[rest]] - known @ text.T)
            logits = SCALE * (text @ features[one] + WEIGHT * np.exp(BETA * (known @ features[one] - 1)) @ dual)
            scores.append(np.exp(logits[classes[one]]) / np.exp(logits).sum())
        values.append((1 + (np.array(scores[:-1]) <= scores[-1] + 1e-12).sum()) / len(features))
    return np.array(values)


def test_full_conformal_equals_refits_whatever_the_order():
    rng = np.random.default_rng(0)
    text = unit(rng, 5, 12)
    images, labels = drawn(rng, 30, text)
    sets, order = RidgeSets(images, labels, text, BETA, RIDGE, WEIGHT, SCALE), rng.permutation(30)
    again = RidgeSets(images[order], labels[order], text, BETA, RIDGE, WEIGHT, SCALE)
    for x in drawn(rng, 4, text)[0]:
        assert np.abs(sets.p_values(x[None])[0] - refitted(images, labels, text, x)).max() < 1e-10
        assert (sets.p_values(x[None]) == again.p_values(x[None])).all()


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_promises_hold_over_draws(level):
    """The share over 200 draws is within 3 sd of the promise, for sets, own images refused and strangers accepted."""
    rng, draws, images, tests = np.random.default_rng(1), 200, 39, 20
    text = unit(rng, 4, 8)
    held = {name: np.zeros(draws) for name in ("full", "split", "own", "strangers")}
    for draw in range(draws):
        features, labels = drawn(rng, images + tests, text)
        sets = RidgeSets(features[:images], labels[:images], text, BETA, RIDGE, WEIGHT, SCALE)
        truth = np.arange(tests), labels[images:]
        held["full"][draw] = (sets.p_values(features[images:])[truth] > 1 - level).mean()
        likely = np.exp(SCALE * features @ text.T)
        likely /= likely.sum(1, keepdims=True)
        true = likely[np.arange(len(labels)), labels]
        held["split"][draw] = (true[images:] >= least_probability(true[:images], level)).mean()
        scores = score_of(features @ text.T)
        held["own"][draw] = (scores[images:] >= least_accepted(scores[:images], 1 - level)).mean()
        held["strangers"][draw] = (scores[images:] < above_strangers(scores[:images], 1 - level)).mean()
    expected = np.ceil(level * (images + 1)) / (images + 1)  # exact without ties
    for name, shares in held.items():
        assert abs(shares.mean() - expected) < 3 * shares.std() / draws**0.5, name


def test_abstaining_keeps_its_promise_and_answers_what_it_can():
    rng = np.random.default_rng(2)
    confidence = rng.random(4000)
    right = rng.random(4000) < confidence
    threshold, answered = least_sure(confidence[:2000], right[:2000], 0.9)
    test = confidence[2000:] >= threshold
    assert right[2000:][test].mean() == pytest.approx(0.9, abs=3 * (0.09 / test.sum()) ** 0.5 + 0.02)
    assert answered == pytest.approx(100 * (confidence[:2000] >= threshold).mean())
    assert 10 < answered < 30  # the mean of a uniform confidence from 0.8 on is 0.9
    with pytest.raises(dear.DearError, match="No part of the 3 images"):
        least_sure(np.array([0.9, 0.8, 0.7]), np.array([True] * 3), 0.9)


@pytest.mark.parametrize("rule", [least_accepted, above_strangers])
def test_too_few_images_for_a_promise(rule):
    assert rule(np.arange(19.0), 0.05) is not None
    with pytest.raises(dear.DearError, match=r"needs 19 \w+, and there are 18"):
        rule(np.arange(18.0), 0.05)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with `run`, fitted to the pictures in `photos`, and pictures that it has not seen."""
    folder = tmp_path_factory.mktemp("decide")
    colors, objects = resolve_dataset("world:colors"), resolve_dataset("world:objects")
    parts = {"own": colors.test[::8], "strangers": objects.test[:40], "one": objects.test[:1]}
    for label, name in enumerate(colors.classes):
        parts[f"photos/{name}"] = [example for example in colors.train if example.label == label][:12]
    for name, examples in parts.items():
        (folder / name).mkdir(parents=True)
        for number, example in enumerate(examples):
            example.picture.open().save(folder / name / f"{number}.png")
    dear.fit(folder / "photos", method="proker", model="dear-mini", out=folder / "run", cache=folder / "cache")
    return folder


def decide(run, **asked):
    return dear.decide(run / "run", cache=run / "cache", **asked)


def test_decisions_from_end_to_end(run, capsys):
    files = sorted((run / "strangers").iterdir())
    before = dear.load(run / "run").predict(files[0])
    assert not {"rejected", "set", "abstains"} & before.to_json().keys()
    decision = decide(run, reject=0.05, coverage=0.9, abstain=0.9)
    assert (decision.calibrated, decision.reject.promise, decision.coverage.how) == (True, "own", "full conformal")
    model = dear.load(run / "run")
    answers = model.predict(files)
    assert answers[0].votes[0].lead == pytest.approx(before.votes[0].lead / decision.temperature, rel=1e-4)
    own = model.predict(sorted((run / "own").iterdir()))
    assert np.mean([one.rejected for one in own]) < 0.3
    assert all(one.choice in one.set for one in own if one.set)
    decided = decide(run, strangers=run / "strangers", reject=0.1)
    assert decided.reject.promise == "strangers"
    assert sum(not one.rejected for one in dear.load(run / "run").predict(files)) <= 0.1 * len(files)
    capsys.readouterr()
    assert main(["predict", str(run / "run"), *map(str, files[:20]), "--csv"]) == 0
    assert "none of these (nearest: " in capsys.readouterr().out
    assert dear.load(run / "run", classes=["red", "blue"]).predict(files[0]).rejected is None
    assert decide(run, strangers="classes", reject=0.1).reject.promise == "estimate"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"reject": 1.0}, "--reject is a share between 0 and 1"),
        ({"abstain": 0.0}, "--abstain is a share between 0 and 1"),
        ({"strangers": "one"}, "needs 19 strangers, and there are 1"),
        ({"strangers": "photos"}, "strangers are labelled images of the run"),
        ({"coverage": 0.9, "data": "world:objects"}, "data has classes that the run has not"),
        ({"coverage": 0.9, "data": "photos"}, "were trained on"),
    ],
)
def test_bad_input(run, asked, message):
    asked = {name: run / value if (run / str(value)).is_dir() else value for name, value in asked.items()}
    with pytest.raises(dear.DearError, match=message):
        decide(run, **asked)


def test_decision_of_another_adapter_is_refused(run):
    decide(run, reject=0.1)
    file = run / "run" / "decision.json"
    text = file.read_text()
    file.write_text(json.dumps({**json.loads(text), "adapter": "0" * 64}))
    with pytest.raises(dear.DearError, match="is the decision of another adapter"):
        dear.load(run / "run")
    file.write_text(text)
