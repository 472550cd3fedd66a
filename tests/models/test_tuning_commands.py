"""The commands that tune and measure, as a user types them."""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from models.bundle import load_bundle
from models.learning import LearningOptions
from models.local import LocalEngine

# Each tunes or replays a whole set.
pytestmark = pytest.mark.slow

Run = Callable[..., Any]


def nbest_file(path: Path, sentences: Sequence[Sequence[str]], **more: Any) -> Path:
    """Lists whose wrong hypothesis the audio prefers: a word of the grammar is in the wrong place."""
    draw = random.Random(3)
    lines = []
    for number, words in enumerate(sentences):
        wrong = list(words)
        draw.shuffle(wrong)
        texts = [" ".join(wrong), " ".join(words)]
        hypotheses = [{"text": text, "acoustic_score": -10.0 - i, "lm_score": -5.0} for i, text in enumerate(texts)]
        lines.append({"id": f"u-{number}", "hypotheses": hypotheses, "reference": " ".join(words), **more})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_perplexity_is_reported_with_and_without_unknown_words_and_their_counts(
    tmp_path: Path, trained: Path, run: Run
) -> None:
    (tmp_path / "test.txt").write_text("the cat sat\nthe zebra ran\n")
    answer = run("perplexity", trained, "--text", tmp_path / "test.txt", "--json", "--device", "cpu")
    rows = {row["model"]: row for row in json.loads(answer.out)}
    assert answer.code == 0
    assert [name.partition(" ")[0] for name in rows] == ["kn5", "rnn", "mixture"]
    for row in rows.values():
        assert (row["events"], row["oov"]) == (8, 1)
        assert row["perplexity"] > row["perplexity_without_oov"] > 1


def test_perplexity_in_words_says_what_was_counted(tmp_path: Path, trained: Path, run: Run) -> None:
    (tmp_path / "test.txt").write_text("the cat sat\nthe zebra ran\n")
    for state in ("reset", "carried"):
        answer = run("perplexity", trained, "--text", tmp_path / "test.txt", "--state", state, "--device", "cpu")
        assert answer.code == 0
        assert "over 8 words and sentence ends; without the 1 OOV words" in answer.out


def test_the_perplexity_of_no_text_is_one_line(tmp_path: Path, trained: Path, run: Run) -> None:
    (tmp_path / "empty.txt").write_text("")
    answer = run("perplexity", trained, "--text", tmp_path / "empty.txt")
    assert answer.code == 1
    assert "empty" in answer.complaint


def test_tuning_writes_its_weights_and_how_they_were_found_into_the_bundle(
    tmp_path: Path, trained: Path, run: Run, make: Any
) -> None:
    development = nbest_file(tmp_path / "dev.jsonl", make.grammar(30, seed=3))
    answer = run("tune", trained, development, "--device", "cpu")
    assert answer.code == 0
    assert "dev.jsonl" in answer.out
    loaded = load_bundle(trained)
    assert sum(loaded.weights.interpolation.values()) == pytest.approx(1)
    assert loaded.weights.lm_scale > 0
    record = loaded.manifest.tuning
    assert record is not None
    assert record["development_set"] == "dev.jsonl"
    errors = record["word_errors"]
    assert errors["oracle"] <= errors["tuned"] < errors["first_pass"]


def test_the_report_is_stored_with_the_weights(tmp_path: Path, trained: Path, run: Run, make: Any) -> None:
    development = nbest_file(tmp_path / "dev.jsonl", make.grammar(30, seed=3))
    options = ("--folds", 3, "--regularise", 0.5, "--device", "cpu")
    answer = run("tune", trained, development, *options)
    assert answer.code == 0, answer.err
    assert "gain over the first pass, cross-validated" in answer.out
    assert "95 % interval" in answer.out
    for heading in ("mean of folds", "±", "lowest", "highest"):
        assert heading in answer.out
    record = load_bundle(trained).manifest.tuning
    assert record is not None
    assert record["regularisation"] == 0.5
    assert record["interpolation"]["chosen_for"] == "perplexity"
    weights = {"interpolation kn5", "interpolation rnn", "acoustic_scale", "first_pass_scale", "lm_scale"}
    assert record["spread_over_folds"].keys() == weights | {"word_bonus", "oov_bonus"}
    for spread in record["spread_over_folds"].values():
        assert spread["lowest"] <= spread["mean"] + 1e-9 <= spread["highest"] + 2e-9
        assert spread["deviation"] >= 0
    rate, errors = record["cross_validated_wer"], record["word_errors"]
    assert rate["percent"] == pytest.approx(100 * errors["cross_validated"] / errors["reference_words"])
    difference = 100 * (errors["cross_validated"] - errors["first_pass"]) / errors["reference_words"]
    assert rate["difference_to_first_pass"] == pytest.approx(difference)
    assert rate["difference_interval"]["low"] <= difference <= rate["difference_interval"]["high"]
    assert 0 < rate["p_value"] <= 1


def test_interpolation_weights_can_be_chosen_for_word_errors(
    tmp_path: Path, trained: Path, run: Run, make: Any
) -> None:
    development = nbest_file(tmp_path / "dev.jsonl", make.grammar(20, seed=3))
    tuned = {}
    for lambdas in ("perplexity", "wer"):
        answer = run("tune", trained, development, "--lambdas", lambdas, "--folds", 2, "--device", "cpu")
        assert answer.code == 0, answer.err
        record = load_bundle(trained).manifest.tuning
        assert record is not None
        assert record["interpolation"]["chosen_for"] == lambdas
        tuned[lambdas] = record["word_errors"]["tuned"]
    assert "for the fewest word errors" in answer.out
    assert tuned["wer"] <= tuned["perplexity"]


@pytest.mark.parametrize("strength", ["-1", "nan", "inf"])
def test_a_pull_of_no_strength_is_refused_before_anything_is_scored(tmp_path: Path, run: Run, strength: str) -> None:
    answer = run("tune", tmp_path / "nowhere", "x.jsonl", "--regularise", strength)
    assert answer.code != 0
    assert "regularis" in answer.err
    assert "Traceback" not in answer.err


def test_tuning_into_a_file_leaves_the_bundle_as_it_was(tmp_path: Path, trained: Path, run: Run, make: Any) -> None:
    development = nbest_file(tmp_path / "dev.jsonl", make.grammar(20, seed=3))
    before = (trained / "bundle.json").read_bytes()
    arguments = ("--output", tmp_path / "weights.json", "--models", "kn5", "--without", "word_bonus")
    assert run("tune", trained, development, *arguments, "--device", "cpu").code == 0
    weights = json.loads((tmp_path / "weights.json").read_text())
    assert (weights["interpolation"], weights["word_bonus"]) == ({"kn5": 1.0}, 0.0)
    assert (trained / "bundle.json").read_bytes() == before


def test_tuning_in_log10_finds_scales_that_serve_log10(tmp_path: Path, trained: Path, run: Run, make: Any) -> None:
    found = {}
    for base in ("e", "10"):
        development = nbest_file(tmp_path / f"dev-{base}.jsonl", make.grammar(20, seed=3))
        if base == "10":
            lines = [json.loads(line) for line in development.read_text().splitlines()]
            for line in lines:
                for hypothesis in line["hypotheses"]:
                    hypothesis["acoustic_score"] /= 2.302585092994046
                    hypothesis["lm_score"] /= 2.302585092994046
            development.write_text("".join(json.dumps(line) + "\n" for line in lines))
        arguments = ("--log-base", base, "--output", tmp_path / f"{base}.json", "--device", "cpu")
        assert run("tune", trained, development, *arguments).code == 0
        found[base] = json.loads((tmp_path / f"{base}.json").read_text())
    assert found["10"]["lm_scale"] == pytest.approx(found["e"]["lm_scale"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--models", "lstm"), "no model named 'lstm'"),
        (("--without", "temperature"), "no weight named 'temperature'"),
        (("--folds", "50"), "too few for 50 folds"),
    ],
)
def test_a_tuning_that_cannot_be_done_is_one_line(
    tmp_path: Path, trained: Path, run: Run, make: Any, arguments: tuple[str, ...], said: str
) -> None:
    development = nbest_file(tmp_path / "dev.jsonl", make.grammar(10, seed=3))
    answer = run("tune", trained, development, *arguments, "--device", "cpu")
    assert answer.code == 1
    assert said in answer.complaint


def test_a_list_without_a_reference_cannot_be_tuned_on(tmp_path: Path, trained: Path, run: Run, make: Any) -> None:
    development = nbest_file(tmp_path / "dev.jsonl", make.grammar(10, seed=3), reference=None)
    answer = run("tune", trained, development, "--device", "cpu")
    assert answer.code == 1
    assert "'u-0' has no reference" in answer.complaint


@pytest.mark.parametrize("command", [("perplexity", "--text", "x"), ("tune", "x")])
def test_a_bundle_that_is_none_is_one_line(tmp_path: Path, run: Run, command: tuple[str, ...]) -> None:
    answer = run(command[0], tmp_path / "nowhere", *command[1:])
    assert answer.code == 1
    assert "no bundle here" in answer.complaint


def test_tuning_stores_the_learning_rate_that_suits_the_networks(
    tmp_path: Path, trained: Path, run: Run, make: Any
) -> None:
    development = nbest_file(tmp_path / "dev.jsonl", make.grammar(30, seed=3))
    answer = run("tune", trained, development, "--device", "cpu", "--rate", 0.002, "--rate", 50)
    assert answer.code == 0
    assert "learning rate of sessions: 0.002" in answer.out
    bundle = load_bundle(trained)
    assert bundle.learning == LearningOptions(0.002)
    assert bundle.describe()["learning"] == {"rate": 0.002, "tau": 1, "decay": 0.0}


def test_a_mixture_without_a_network_is_tuned_without_a_learning_rate(
    tmp_path: Path, trained: Path, run: Run, make: Any
) -> None:
    development = nbest_file(tmp_path / "dev.jsonl", make.grammar(20, seed=3))
    answer = run("tune", trained, development, "--device", "cpu", "--models", "kn5")
    assert answer.code == 0
    assert "learning rate" not in answer.out
    assert load_bundle(trained).manifest.learning is None


def test_tuning_for_sessions_says_so_in_the_bundle_and_the_session_starts_from_it(
    tmp_path: Path, trained: Path, run: Run, make: Any
) -> None:
    development = nbest_file(tmp_path / "dev.jsonl", make.grammar(20, seed=3), speaker="s1")
    options = ("--dynamic", "--session-per", "speaker", "--rate", 0.01, "--tau", 2, "--device", "cpu")
    answer = run("tune", trained, development, *options)
    assert answer.code == 0, answer.err
    bundle = load_bundle(trained)
    assert bundle.manifest.tuning is not None
    assert bundle.manifest.tuning["sessions"] == {"per": "speaker", "state": "carried", "weights": "dynamic"}
    assert bundle.learning == LearningOptions(0.01, tau=2)
    sessions = LocalEngine(str(trained)).sessions({}, {})
    assert sessions.describe()["options"] | {"rate": 0.01, "tau": 2} == sessions.describe()["options"]
    given = LocalEngine(str(trained)).sessions({"rate": 0.5}, {}).describe()["options"]
    assert (given["rate"], given["tau"]) == (0.5, 2)


def test_weights_for_dynamic_sessions_are_those_of_the_scores_that_the_sessions_give(
    tmp_path: Path, trained: Path, run: Run, make: Any
) -> None:
    """At rate 0 a session that resets its state is no session: the same weights must come out."""
    development = nbest_file(tmp_path / "dev.jsonl", make.grammar(20, seed=3))
    found = []
    for more in ((), ("--dynamic", "--state", "reset", "--rate", 0)):
        output = tmp_path / "weights.json"
        assert run("tune", trained, development, *more, "--output", output, "--device", "cpu").code == 0
        found.append(json.loads(output.read_text()))
    assert found[0].pop("interpolation") == pytest.approx(found[1].pop("interpolation"), abs=1e-4)
    assert found[0] == pytest.approx(found[1], abs=1e-3)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--state", "carried"), "--state goes with"),
        (("--tau", "2"), "--tau goes with --dynamic"),
        (("--dynamic", "--models", "kn5"), "nothing that could learn"),
        (("--dynamic", "--session-per", "speaker"), "has no speaker"),
    ],
)
def test_options_for_sessions_that_do_not_go_together_are_refused(
    tmp_path: Path, trained: Path, run: Run, make: Any, options: Sequence[str], complaint: str
) -> None:
    development = nbest_file(tmp_path / "dev.jsonl", make.grammar(12, seed=3))
    answer = run("tune", trained, development, *options, "--device", "cpu")
    assert answer.code != 0
    assert complaint in " ".join(answer.err.replace("│", " ").split())


def test_sessions_are_not_tuned_on_a_text_beside_them(tmp_path: Path, trained: Path, run: Run, make: Any) -> None:
    development = nbest_file(tmp_path / "dev.jsonl", make.grammar(12, seed=3))
    (tmp_path / "text.txt").write_text("the cat sat\n")
    answer = run("tune", trained, development, "--dynamic", "--held-out", tmp_path / "text.txt")
    assert answer.code == 1
    assert "--held-out does not go with them" in answer.complaint
