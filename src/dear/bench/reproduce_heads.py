"""Table 1 and Figure 3 of the paper, which are about heads: measured on any backbone, by pictures."""

from dear.bench.chapters import Block, Chapter
from dear.clip import Backbone
from dear.core.table import Table
from dear.heads.by_pictures import roles_by_pictures
from dear.heads.check_search import check_by_search
from dear.heads.pictures import find_probes
from dear.heads.role_map import RoleMap

TABLE_1 = {"object": (12, 7), "shape": (12, 5), "texture": (11, 5), "color": (12, 10), "location": (12, 0)}
"""The paper's example of a head for each attribute, (layer, head), in OpenAI's ViT-B/16."""


def heads_chapter(table: str, backbone: Backbone, limit: int | None = None) -> Chapter:
    """`limit`: pictures to measure on."""
    size = max(backbone.image.image_size)
    role_map = roles_by_pictures(backbone, find_probes([], size, limit))
    if "1" in table:
        block = _examples(backbone, role_map)
    else:
        found = check_by_search(backbone, role_map, find_probes([], size, limit, held_out=True))
        note = "The paper shows pictures, no numbers. " + found.verdict()
        block = Block("retrieval", "Pictures that share the attribute among the ten nearest", found.table(), note)
    return Chapter("paper", f"{table}, beside the paper", [block])


def _examples(backbone: Backbone, role_map: RoleMap) -> Block:
    """For each attribute the paper's head, its measured role, and the heads that were measured for it."""
    same_tower = (backbone.image.layers, backbone.image.heads) == (12, 12)
    table = Table(["attribute", "paper", "its role, measured", "heads measured for it", "verdict"])
    agree = 0
    for attribute, head in TABLE_1.items():
        ours = ", ".join(f"L{layer} H{number}" for layer, number in role_map.heads_for(attribute)) or "none"
        role = role_map[head] if same_tower else None
        measured = None if role is None else f"{role.role}" + (f", {role.concept}" if role.concept else "")
        verdict = "another tower" if role is None else "same" if head in role_map.heads_for(attribute) else "other"
        agree += verdict == "same"
        table.add(attribute, f"L{head[0]} H{head[1]}", measured, ours, verdict)
    note = (
        f"{agree} of {len(TABLE_1)} heads have the paper's attribute."
        if same_tower
        else (
            f"The paper's heads are those of ViT-B/16; {backbone.name} has {backbone.image.layers} layers of "
            f"{backbone.image.heads} heads."
        )
    )
    return Block("heads", "Heads and their attributes", table, note)
