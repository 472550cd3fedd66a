"""Bundles that are missing something, changed, or made to do harm."""

import hashlib
import json
import math
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.bundle import (
    load_bundle,
)
from models.errors import BundleError

FILES = ["bundle.json", "vocab.txt", "ngram.kenlm", "rnn/config.json", "rnn/model.safetensors"]


def rehash(folder: Path) -> None:
    """Enter the files as they are, so that only what they hold is wrong."""
    manifest = json.loads((folder / "bundle.json").read_text())
    manifest["vocabulary"]["sha256"] = hashlib.sha256((folder / "vocab.txt").read_bytes()).hexdigest()
    for entry in manifest["models"].values():
        for file in entry["files"]:
            if (folder / file).is_file():
                entry["files"][file] = hashlib.sha256((folder / file).read_bytes()).hexdigest()
    (folder / "bundle.json").write_text(json.dumps(manifest))


def edit(folder: Path, change: Callable[[Any], Any], file: str = "bundle.json") -> None:
    document = json.loads((folder / file).read_text())
    changed = change(document)
    (folder / file).write_text(json.dumps(document if changed is None else changed))


def edit_tensors(folder: Path, **changed: torch.Tensor | None) -> None:
    path = folder / "rnn" / "model.safetensors"
    tensors = {**load_file(path), **changed}
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    rehash(folder)


@pytest.mark.parametrize("file", FILES)
def test_a_missing_file_is_refused_by_name(bundle_folder: Path, file: str) -> None:
    (bundle_folder / file).unlink()
    with pytest.raises(BundleError, match=Path(file).name.replace(".", r"\.")):
        load_bundle(bundle_folder)


@pytest.mark.parametrize("file", FILES[1:])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_single_byte_changed_is_refused_by_file(bundle_folder: Path, file: str, place: str) -> None:
    path = bundle_folder / file
    content = bytearray(path.read_bytes())
    content[{"first": 0, "middle": len(content) // 2, "last": -1}[place]] ^= 1
    path.write_bytes(content)
    with pytest.raises(BundleError, match=path.name.replace(".", r"\.")):
        load_bundle(bundle_folder)


@pytest.mark.parametrize("file", FILES[1:])
def test_a_file_cut_short_is_refused_by_name(bundle_folder: Path, file: str) -> None:
    path = bundle_folder / file
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BundleError, match=path.name.replace(".", r"\.")):
        load_bundle(bundle_folder)


def test_a_manifest_damaged_anywhere_gives_a_bundle_or_a_named_error(bundle_folder: Path) -> None:
    path = bundle_folder / "bundle.json"
    whole = path.read_bytes()
    refused = 0
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 4
        path.write_bytes(damaged)
        try:
            load_bundle(bundle_folder)
        except BundleError as error:
            refused += 1
            assert str(bundle_folder) in str(error)  # noqa: PT017 - a bundle that loads is right, too
    assert refused > len(whole) / 14


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff", b"{}"])
def test_a_manifest_that_is_none_is_refused_by_name(bundle_folder: Path, content: bytes) -> None:
    (bundle_folder / "bundle.json").write_bytes(content)
    with pytest.raises(BundleError, match=r"bundle\.json"):
        load_bundle(bundle_folder)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_format_version_is_refused_with_the_one_that_is_read(bundle_folder: Path, version: object) -> None:
    edit(bundle_folder, lambda d: d.update(format_version=version))
    with pytest.raises(BundleError, match=r"bundle\.json: format version .*; this release reads 1"):
        load_bundle(bundle_folder)


CHANGES: list[tuple[str, Callable[[Any], Any], str]] = [
    ("unknown kind", lambda d: d["models"]["rnn"].update(kind="lstm"), "unknown kind 'lstm'"),
    ("kind no string", lambda d: d["models"]["rnn"].update(kind=5), "'rnn'"),
    ("no kind", lambda d: d["models"]["rnn"].pop("kind"), "'kind'"),
    ("models a list", lambda d: d.update(models=[]), "not of its type"),
    ("model a string", lambda d: d["models"].update(rnn="x"), "not of its type"),
    ("no files", lambda d: d["models"]["ngram"].update(files={}), r"must have the files ngram\.kenlm"),
    ("files of another", lambda d: d["models"]["ngram"].update(files=d["models"]["rnn"]["files"]), "must have"),
    ("hash no string", lambda d: d["models"]["ngram"].update(files={"ngram.kenlm": 5}), "'ngram'"),
    ("normaliser", lambda d: d["normaliser"].update(case="upper"), "'case'"),
    ("normaliser setting", lambda d: d["normaliser"].update(stem=1), "'stem'"),
    ("no normaliser", lambda d: d.pop("normaliser"), "'normaliser'"),
    ("no vocabulary", lambda d: d.pop("vocabulary"), "'vocabulary'"),
    ("lambdas", lambda d: d["weights"]["interpolation"].update(rnn=0.9), "sum to 1.15"),
    ("lambda of a stranger", lambda d: d["weights"].update(interpolation={"lstm": 1}), "'lstm'"),
    ("infinite weight", lambda d: d["weights"].update(lm_scale=math.inf), "lm_scale"),
    ("weight no number", lambda d: d["weights"].update(lm_scale="1"), "lm_scale"),
    ("strange weight", lambda d: d["weights"].update(temperature=1), "'temperature'"),
    ("weights a list", lambda d: d.update(weights=[1]), "not of its type"),
]


@pytest.mark.parametrize(("change", "said"), [c[1:] for c in CHANGES], ids=[c[0] for c in CHANGES])
def test_a_manifest_that_contradicts_itself_is_refused_by_field(
    bundle_folder: Path, change: Callable[[Any], Any], said: str
) -> None:
    def apply(document: Any) -> None:
        change(document)

    edit(bundle_folder, apply)
    with pytest.raises(BundleError, match=rf"bundle\.json: .*{said}"):
        load_bundle(bundle_folder)


@pytest.mark.parametrize("name", ["../rnn", "/elsewhere/rnn", "rnn/../../rnn"])
def test_a_model_outside_the_bundle_is_not_loaded(bundle_folder: Path, name: str) -> None:
    shutil.copytree(bundle_folder / "rnn", bundle_folder.parent / "rnn")

    def move(document: Any) -> None:
        entry = document["models"].pop("rnn")
        entry["files"] = {f"{name}/{Path(file).name}": digest for file, digest in entry["files"].items()}
        document["models"][name] = entry
        document["weights"] = None

    edit(bundle_folder, move)
    with pytest.raises(BundleError, match="outside the bundle"):
        load_bundle(bundle_folder)


def test_a_link_that_leads_out_of_the_bundle_is_not_followed(bundle_folder: Path, tmp_path: Path) -> None:
    (bundle_folder / "ngram.kenlm").rename(tmp_path / "outside.kenlm")
    (bundle_folder / "ngram.kenlm").symlink_to(tmp_path / "outside.kenlm")
    with pytest.raises(BundleError, match="outside the bundle"):
        load_bundle(bundle_folder)


class Mischief:
    """What a pickle can do when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("file", ["rnn/model.safetensors", "rnn/config.json", "ngram.kenlm"])
@pytest.mark.parametrize("pack", ["pickle", "torch"])
def test_a_pickle_is_not_loaded(bundle_folder: Path, tmp_path: Path, file: str, pack: str) -> None:
    mischief = Mischief(tmp_path / "was here")
    if pack == "pickle":
        (bundle_folder / file).write_bytes(pickle.dumps(mischief))
    else:
        torch.save(mischief, bundle_folder / file)
    rehash(bundle_folder)
    with pytest.raises(BundleError, match=Path(file).name.replace(".", r"\.")):
        load_bundle(bundle_folder)
    assert not mischief.path.exists()


NETWORKS: list[tuple[str, dict[str, torch.Tensor | None]]] = [
    ("NaN", {"W": torch.full((6, 6), math.nan)}),
    ("infinite", {"V": torch.full((4, 6), math.inf)}),
    ("shape of U", {"U": torch.zeros(5, 6)}),
    ("shape of W", {"W": torch.zeros(6, 5)}),
    ("no matrix", {"W": torch.tensor(0.0)}),
    ("kinds", {"W": torch.zeros(6, 6, dtype=torch.float64)}),
    ("integers", {name: torch.zeros(rows, 6, dtype=torch.int32) for name, rows in (("U", 4), ("W", 6), ("V", 4))}),
    ("missing", {"V": None}),
    ("classes missing", {"class_of_event": None}),
    ("classes of another vocabulary", {"class_of_event": torch.tensor([1, 0, 2, 3])}),
    ("classes no row", {"class_of_event": torch.tensor(1)}),
    ("classes no integers", {"class_of_event": torch.tensor([1.0, 0.0, 2.0, 3.0, 1.0])}),
    ("classes swapped", {"class_of_event": torch.tensor([0, 1, 2, 3, 1])}),
    ("rare members", {"class_of_event": torch.tensor([1, 0, 2, 3, 3])}),
    ("too many classes", {"class_of_event": torch.tensor([1, 0, 2, 9, 1])}),
]


@pytest.mark.parametrize("changed", [n[1] for n in NETWORKS], ids=[n[0] for n in NETWORKS])
def test_a_network_that_is_none_is_refused_by_file(
    bundle_folder: Path, changed: dict[str, torch.Tensor | None]
) -> None:
    edit_tensors(bundle_folder, **changed)
    with pytest.raises(BundleError, match=r"model\.safetensors"):
        load_bundle(bundle_folder)


@pytest.mark.parametrize(
    ("change", "file"),
    [
        (lambda _: [], "config"),
        (lambda d: d.pop("rare_members") and None, "config"),
        (lambda d: d.update(rare_members="x"), "config"),
        (lambda d: d.update(initial_state=None), "config"),
        (lambda d: d.update(initial_state=math.nan), "model"),
        (lambda d: d.update(rare_members=7), "model"),
    ],
    ids=["list", "no members", "members no number", "no state", "state NaN", "members"],
)
def test_a_configuration_that_is_none_is_refused_by_file(
    bundle_folder: Path, change: Callable[[Any], Any], file: str
) -> None:
    edit(bundle_folder, change, "rnn/config.json")
    rehash(bundle_folder)
    with pytest.raises(BundleError, match=rf"rnn/{file}"):
        load_bundle(bundle_folder)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("good\nmorning\n", r"rnn/model\.safetensors"),
        ("good\nevening\nday\n", r"ngram\.kenlm.*'evening'"),
        ("good\ngood\nday\n", r"vocab\.txt.*twice"),
    ],
)
def test_models_of_another_vocabulary_are_refused_by_file(bundle_folder: Path, words: str, said: str) -> None:
    (bundle_folder / "vocab.txt").write_text(words)
    rehash(bundle_folder)
    with pytest.raises(BundleError, match=said):
        load_bundle(bundle_folder)


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x00" * 100])
def test_an_n_gram_that_is_none_is_refused_by_file(bundle_folder: Path, content: bytes) -> None:
    (bundle_folder / "ngram.kenlm").write_bytes(content)
    rehash(bundle_folder)
    with pytest.raises(BundleError, match=r"ngram\.kenlm"):
        load_bundle(bundle_folder)
