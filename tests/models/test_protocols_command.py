"""`nbest protocols`, as a user types it."""

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from models.bundle import Manifest, load_bundle
from models.learning import LearningOptions
from models.protocols import CELLS
from models.protocols_plot import draw
from models.score import Weights

# Each tunes or replays a whole set.
pytestmark = pytest.mark.slow

Run = Callable[..., Any]

SENTENCES = ("good morning", "good day", "morning day good", "day", "good good morning", "morning")


def nbest_file(path: Path, sentences: Sequence[str] = SENTENCES, **more: Any) -> Path:
    """Each reference among two others, the audio a little on the side of a wrong one."""
    lines = []
    for number, reference in enumerate(sentences):
        texts = [f"{reference} day", reference, "good evening"]
        hypotheses = [{"text": text, "acoustic_score": -float(i)} for i, text in enumerate(texts)]
        speaker = f"s{number % 2}"
        line = {"id": f"u-{number}", "hypotheses": hypotheses, "reference": reference, "speaker": speaker, **more}
        lines.append({name: value for name, value in line.items() if value is not None})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def strictly(path: Path) -> Any:
    """The JSON of a file, which may hold no NaN and no infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return json.loads(path.read_text(), parse_constant=refuse)


def test_the_tables_name_every_cell_and_the_files_hold_the_same_experiment(
    tmp_path: Path, bundle_folder: Path, run: Run
) -> None:
    lists = nbest_file(tmp_path / "set.jsonl")
    files = ("--json", tmp_path / "out.json", "--svg", tmp_path / "out.svg")
    answer = run("protocols", bundle_folder, lists, *files, "--shuffles", 2, "--rate", 0.5, "--device", "cpu")
    assert answer.code == 0, answer.err
    rows = [re.findall(r"[a-z]+", line)[:3] for line in answer.out.splitlines()]
    for cell in CELLS:
        # In the table of word errors, and in that of perplexities.
        assert rows.count([cell.order, cell.state, cell.weights]) == 2
    document = strictly(tmp_path / "out.json")
    assert [cell["name"] for cell in document["cells"]] == [cell.name for cell in CELLS]
    assert document["bundle"] == load_bundle(bundle_folder).sha256
    assert document["set"]["sha256"] == hashlib.sha256(lists.read_bytes()).hexdigest()
    assert document["settings"]["learning"] == {"rate": 0.5, "tau": 1, "decay": 0.0}
    assert (document["settings"]["accepted"], document["settings"]["seed"]) == ("winner", 1)
    assert [sorted(order) for order in document["shuffles"]] == [list(range(6))] * 2
    assert (tmp_path / "out.svg").read_text() == draw(document)


def test_the_json_is_enough_to_count_every_rate_again(tmp_path: Path, bundle_folder: Path, run: Run) -> None:
    lists = nbest_file(tmp_path / "set.jsonl")
    assert run("protocols", bundle_folder, lists, "--json", tmp_path / "out.json", "--shuffles", 3).code == 0
    document = strictly(tmp_path / "out.json")
    words = sum(document["utterances"]["reference_words"])
    assert words == sum(len(text.split()) for text in SENTENCES) == document["set"]["reference_words"]
    for cell in document["cells"]:
        assert len(cell["passes"]) == (1 if cell["order"] == "original" else 3)
        rates = [100 * sum(one["errors"]) / words for one in cell["passes"]]
        assert cell["wer_percent"]["by_pass"] == pytest.approx(rates)
        assert cell["wer_percent"]["value"] == pytest.approx(sum(rates) / len(rates))
        low, high = cell["wer_percent"]["interval"]
        assert low <= cell["wer_percent"]["value"] <= high
        assert cell["updates"] == pytest.approx(sum(one["updates"] for one in cell["passes"]) / len(cell["passes"]))
        assert set(cell["perplexity"]) == {"mixture", "rnn"}


def test_one_utterance_and_one_shuffle_make_no_number_that_is_none(
    tmp_path: Path, bundle_folder: Path, run: Run
) -> None:
    lists = nbest_file(tmp_path / "set.jsonl", ["good evening"])
    files = ("--json", tmp_path / "out.json", "--svg", tmp_path / "out.svg")
    answer = run("protocols", bundle_folder, lists, *files, "--shuffles", 1)
    assert answer.code == 0, answer.err
    document = strictly(tmp_path / "out.json")
    assert document["set"]["oov_words"] == 1
    assert "nan" not in (tmp_path / "out.svg").read_text()
    ET.parse(tmp_path / "out.svg")  # noqa: S314 - what was just written


def test_the_same_seed_gives_the_same_experiment_and_another_other_orders(
    tmp_path: Path, bundle_folder: Path, run: Run
) -> None:
    lists = nbest_file(tmp_path / "set.jsonl")
    found = []
    for seed in (3, 3, 4):
        out = tmp_path / "out.json"
        assert run("protocols", bundle_folder, lists, "--json", out, "--seed", seed, "--shuffles", 2).code == 0
        document = strictly(out)
        for cell in document["cells"]:
            del cell["seconds"]
            for one in cell["passes"]:
                del one["seconds"]
        found.append(document)
    assert found[0] == found[1]
    assert found[0]["shuffles"] != found[2]["shuffles"]


def test_weights_of_a_file_stand_before_the_bundle_s_and_an_explicit_zero_is_honoured(
    tmp_path: Path, bundle_folder: Path, run: Run
) -> None:
    lists = nbest_file(tmp_path / "set.jsonl")
    options = tmp_path / "weights.json"
    options.write_text(json.dumps({"lm_scale": 0, "word_bonus": 0, "oov_bonus": 0, "interpolation": {"rnn": 1}}))
    out = tmp_path / "out.json"
    assert run("protocols", bundle_folder, lists, "--options", options, "--json", out, "--shuffles", 1).code == 0
    document = strictly(out)
    assert document["weights"]["lm_scale"] == 0
    assert document["weights"]["interpolation"] == {"rnn": 1}
    # With no weight on what language models say, every cell keeps the recogniser's order: one word too many a list.
    for cell in document["cells"]:
        assert all(one["errors"] == [1] * len(SENTENCES) for one in cell["passes"])
        assert cell["perplexity"]["mixture"]["value"] == pytest.approx(cell["perplexity"]["rnn"]["value"])


def test_references_can_be_accepted_and_speakers_have_sessions_of_their_own(
    tmp_path: Path, bundle_folder: Path, run: Run
) -> None:
    lists = nbest_file(tmp_path / "set.jsonl")
    out = tmp_path / "out.json"
    more = ("--learn-from", "reference", "--session-per", "speaker", "--tau", 3, "--shuffles", 2)
    answer = run("protocols", bundle_folder, lists, "--json", out, *more)
    assert answer.code == 0, answer.err
    assert "one per speaker, reference accepted, rate 0.1, tau 3" in answer.out
    document = strictly(out)
    assert document["set"]["sessions"] == 2
    updates = {one["updates"] for cell in document["cells"] for one in cell["passes"]}
    assert updates == {0, document["set"]["events"]}


def test_scores_in_log10_make_the_same_experiment(tmp_path: Path, bundle_folder: Path, run: Run) -> None:
    natural = nbest_file(tmp_path / "natural.jsonl")
    decimal = tmp_path / "decimal.jsonl"
    lines = [json.loads(line) for line in natural.read_text().splitlines()]
    for line in lines:
        for hypothesis in line["hypotheses"]:
            hypothesis["acoustic_score"] /= 2.302585092994046
    decimal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = []
    for lists, base in ((natural, "e"), (decimal, "10")):
        out = tmp_path / "out.json"
        assert run("protocols", bundle_folder, lists, "--log-base", base, "--json", out, "--shuffles", 1).code == 0
        found.append([one["winners"] for cell in strictly(out)["cells"] for one in cell["passes"]])
    assert found[0] == found[1]


def test_a_bundle_without_a_recurrent_network_has_no_session_to_compare(
    tmp_path: Path, bundle_folder: Path, run: Run
) -> None:
    manifest = Manifest.read(bundle_folder)
    del manifest.models["rnn"]
    manifest.weights = Weights({"ngram": 1.0})
    manifest.write(bundle_folder)
    answer = run("protocols", bundle_folder, nbest_file(tmp_path / "set.jsonl"))
    assert answer.code == 1
    assert f"{bundle_folder}: the bundle holds no recurrent network" in answer.complaint


@pytest.mark.parametrize(
    ("more", "arguments", "said"),
    [
        ({"reference": None}, (), r"set\.jsonl: utterance 'u-0' has no reference"),
        ({"reference": ""}, (), r"set\.jsonl: the references hold no word"),
        ({"reference": "<s> good"}, (), r"set\.jsonl: utterance 'u-0', reference: "),
        ({"speaker": None}, ("--session-per", "speaker"), r"set\.jsonl: utterance 'u-0' has no speaker"),
        ({}, ("--rate", "inf"), "rate is inf"),
        ({}, ("--rate", "1e30"), "cell original, reset, dynamic, utterance 'u-"),
        ({}, ("--json", "missing/out.json"), r"--json missing/out\.json: not a file in a folder that exists"),
        ({}, ("--svg", "."), r"--svg \.: not a file"),
        ({}, ("--options", "missing.json"), r"missing\.json: cannot be read"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    tmp_path: Path, bundle_folder: Path, run: Run, more: dict[str, Any], arguments: tuple[str, ...], said: str
) -> None:
    answer = run("protocols", bundle_folder, nbest_file(tmp_path / "set.jsonl", **more), *arguments)
    assert answer.code == 1
    assert re.search(said, answer.complaint), answer.complaint


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "holds no JSON object"),
        ("{", "cannot be read as JSON"),
        ('{"lm_scale": "2"}', "lm_scale must be a number"),
        ('{"state": "carried"}', "unknown weight 'state'"),
        ('{"interpolation": {"lstm": 1}}', "no model named 'lstm'"),
        ('{"interpolation": {"ngram": 1}}', "nothing that could learn"),
        ('{"lm_scale": NaN}', "lm_scale is nan"),
    ],
)
def test_weights_that_are_none_are_named(tmp_path: Path, bundle_folder: Path, run: Run, text: str, said: str) -> None:
    options = tmp_path / "weights.json"
    options.write_text(text)
    answer = run("protocols", bundle_folder, nbest_file(tmp_path / "set.jsonl"), "--options", options)
    assert answer.code == 1
    assert said in answer.complaint


@pytest.mark.parametrize(
    "option", [("--shuffles", "0"), ("--rate", "nan"), ("--tau", "0"), ("--learn-from", "oracle"), ("--seed", "-1")]
)
def test_an_option_out_of_its_range_is_a_usage_error(
    tmp_path: Path, bundle_folder: Path, run: Run, option: tuple[str, str]
) -> None:
    answer = run("protocols", bundle_folder, nbest_file(tmp_path / "set.jsonl"), *option)
    assert answer.code == 2
    assert option[0] in answer.err


def test_the_dynamic_cells_learn_as_the_bundle_was_tuned_to(tmp_path: Path, bundle_folder: Path, run: Run) -> None:
    manifest = Manifest.read(bundle_folder)
    manifest.learning = LearningOptions(0.02, 3)
    manifest.write(bundle_folder)
    lists = nbest_file(tmp_path / "set.jsonl")
    found = []
    for more in ((), ("--rate", 0.5)):
        options = ("--shuffles", 1, *more, "--json", tmp_path / "out.json", "--device", "cpu")
        assert run("protocols", bundle_folder, lists, *options).code == 0
        found.append(strictly(tmp_path / "out.json")["settings"]["learning"])
    assert found == [{"rate": 0.02, "tau": 3, "decay": 0.0}, {"rate": 0.5, "tau": 3, "decay": 0.0}]
