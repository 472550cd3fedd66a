"""What another lab needs to repeat a figure, in one line."""

import json

from .result import Evaluation, SystemResult


def words_are(evaluation: Evaluation) -> str:
    """Where the words come from, and what was done to them since."""
    chosen = evaluation.choices.normalisation.describe()
    plain = "texts split at white space" if chosen else "texts split at white space, not normalised"
    return ", then ".join(["the bundle's normaliser" if evaluation.normalised else plain, *chosen])


def signature(evaluation: Evaluation, system: SystemResult) -> str:
    """The signature of one system's figures."""
    made, choices = system.made_with, evaluation.choices
    weights = made.get("weights") or {}
    learnt = made.get("sessions")
    parts = {
        **evaluation.software,
        "set": evaluation.set_name,
        "utterances": evaluation.utterances,
        "N": evaluation.depth,
        "words": words_are(evaluation),
        "characters": "of the words joined by one space, the space counts",
        **({"bundle": made["bundle"]} if made.get("bundle") else {}),
        **({"weights": json.dumps(weights, sort_keys=True, separators=(",", ":"))} if weights else {}),
        **({"state": made["state"]} if made.get("state") else {}),
        **({"decision": made["decision"]} if made.get("decision") else {}),
        **({"sessions": json.dumps(made["sessions"], sort_keys=True, separators=(",", ":"))} if learnt else {}),
        "bootstrap": f"{choices.resamples} resamples of utterances, seed {choices.seed}",
        **(
            {
                "matched pairs": f"segments parted by {choices.boundary_words} correct words",
                "corrected": f"Holm, {len(evaluation.comparisons)} comparisons",
            }
            if evaluation.comparisons
            else {}
        ),
    }
    return " | ".join(f"{name}: {value}" for name, value in parts.items())


def signatures(evaluation: Evaluation) -> dict[str, str]:
    """A signature per rescored system; of the first pass, where nothing is rescored."""
    chosen = evaluation.rescored or evaluation.systems[:1]
    return {system.name: signature(evaluation, system) for system in chosen}
