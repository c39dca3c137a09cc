"""Clusters the shipped phrases into concepts and writes them to src/dear/heads/assets/concepts.*.

    python scripts/make_concepts.py

Prints the report that is also stored in concepts.json. The hidden labels are used only to evaluate the result.
"""

import json
from collections import Counter
from dataclasses import replace

from clustering import find_concepts, labelled_phrases, save_concepts
from dear.heads.concepts import ASSETS, WORLD_PHRASES


def main() -> None:
    labelled = dict(labelled_phrases())
    clustering = find_concepts(list(labelled))
    concepts = clustering.concepts

    world = dict(labelled_phrases(WORLD_PHRASES))
    frozen = dict(zip(world, concepts.assign(list(world)), strict=True))
    wrong = {phrase: concept for phrase, concept in frozen.items() if concept != world[phrase]}
    report = clustering.report(list(labelled.values()))
    report |= {"world_phrases": len(world), "world_accuracy": round(1 - len(wrong) / len(world), 4)}
    save_concepts(replace(concepts, table={**concepts.table, **frozen}), report, ASSETS)

    print(json.dumps(report, indent=1))
    print("clusters:", dict(Counter(clustering.cluster_concepts)))
    for phrase, concept in wrong.items():
        print(f"world phrase not with its attribute: {world[phrase]} -> {concept}: {phrase}")


if __name__ == "__main__":
    main()
