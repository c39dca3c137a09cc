"""Gains of heads: identities, names, what is kept, and the commands."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.nn import functional as F

import dear
from dear.cli import main
from dear.clip import load_backbone
from dear.clip.image import ImageTower
from dear.core.errors import DearError
from dear.gallery.encoders import HeadEncoder
from dear.heads.contributions import HeadContributions
from dear.heads.gains import Gains, named_gains, parse_gains, with_gains
from dear.heads.role_map import RoleMap
from dear.methods.shared.attention_maps import head_attention
from dear.model import explain as explain_module
from dear.model.explain import explained
from dear.model.predictor import encode_pixels, logits_and_votes

NAMES = ["red", "green", "blue"]


@pytest.fixture(scope="module")
def mini():
    return load_backbone("dear-mini")


@pytest.fixture(scope="module")
def roles():
    return RoleMap.preset("dear-mini")


def picture(seed: int = 0) -> Image.Image:
    numbers = torch.randint(256, (40, 60, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    return Image.fromarray(numbers.numpy())


def some(backbone, count: int = 3) -> torch.Tensor:
    return torch.stack([backbone.preprocess(picture(seed)) for seed in range(count)])


def feature(backbone, pixels: torch.Tensor) -> torch.Tensor:
    tower = backbone.image
    return tower.frozen_feature(tower.layer_input(pixels, tower.layers + 1))


def test_gain_one_is_clip_and_gains_multiply(mini, roles) -> None:
    pixels, clip = some(mini), feature(mini, some(mini))
    ones = named_gains({"all": 1.0}, roles)
    torch.testing.assert_close(feature(with_gains(mini, ones), pixels), clip)
    kept = mini.image.head_outputs(pixels, ones.first)
    two, three, six = (ones._replace(gains=torch.full_like(ones.gains, gain)) for gain in (2.0, 3.0, 6.0))
    once, twice = six.apply(mini.image, kept), three.apply(mini.image, two.apply(mini.image, kept))
    torch.testing.assert_close(twice.frozen_cls, once.frozen_cls, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(twice.outputs, once.outputs, rtol=1e-4, atol=1e-4)


def test_gain_zero_puts_a_head_at_its_mean(mini, roles) -> None:
    layer, head = roles.layers[-1], 2
    gains = named_gains({f"{layer}.{head}": 0.0}, roles)
    pixels, tower = some(mini), mini.image
    plain = tower.head_outputs(pixels, gains.first)
    found = gains.apply(tower, plain)
    block = tower.blocks[layer - 1]
    columns = block.attn.out_proj.weight.unflatten(1, (tower.heads, -1))[:, head]
    written = (plain.outputs[:, -1, head] - gains.means[-1, head]) @ columns.T
    torch.testing.assert_close(found.frozen_cls, plain.frozen_cls - block.ls_1(written), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.outputs[:, -1, head], gains.means[-1, head].expand(len(pixels), -1))
    others = [h for h in range(tower.heads) if h != head]
    assert torch.equal(found.outputs[:, -1, others], plain.outputs[:, -1, others])


def test_contributions_of_a_tower_with_gains_are_scaled_too(mini, roles) -> None:
    """Beyond its mean, a head with gain 2 contributes twice; the scale of the LayerNorm and the length differ."""
    first, pixels = roles.layers[0], some(mini, 4)
    gained = with_gains(mini, named_gains({f"{first}.0": 2.0}, roles))
    codes, of_gained = HeadContributions(gained, first).codes_and_feature(pixels)
    plain = HeadContributions(mini, first)
    outputs, scaled = (part[..., :-3] / part[..., -3:-2] for part in (plain.codes(pixels), codes))
    mean = torch.tensor(roles.means)[0, 0]
    torch.testing.assert_close(scaled[:, 0, 0] - mean, 2 * (outputs[:, 0, 0] - mean), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(of_gained, feature(gained, pixels))


def test_the_means_of_a_map_are_those_of_its_pictures(mini, roles) -> None:
    outputs = mini.image.head_outputs(some(mini), roles.layers[0]).outputs
    assert torch.tensor(roles.means).shape == outputs.shape[1:]
    again = RoleMap.from_json(json.loads(json.dumps(roles.to_json())))
    assert again == roles
    late = roles.for_layers(roles.layers[1])
    assert late.means == roles.means[1:]


def test_names_of_gains(roles) -> None:
    color, head = roles.heads_for("color"), f"{roles.layers[-1]}.1"
    found = named_gains({head: 5.0, "all": 2.0, "color": 3.0}, roles)  # the most special wins, in any order
    expected = torch.full_like(found.gains, 2.0)
    for layer, number in color:
        expected[layer - roles.layers[0], number] = 3.0
    expected[-1, 1] = 5.0
    assert torch.equal(found.gains, expected)
    assert parse_gains(["color=2", "12.10=0"]) == {"color": 2.0, "12.10": 0.0}
    for bad, sentence in {"smell": "choose from all", "99.1": "There is no head 99.1"}.items():
        with pytest.raises(DearError, match=sentence):
            named_gains({bad: 1.0}, roles)
    with pytest.raises(DearError, match="NAME=NUMBER"):
        parse_gains(["color"])
    with pytest.raises(DearError, match="from -100 to 100"):
        named_gains({"all": float("nan")}, roles)
    for wrong in ("big", None, [2]):
        with pytest.raises(DearError, match="must be a number from -100 to 100"):
            named_gains({"all": wrong}, roles)
    with pytest.raises(DearError, match="named by a string"):
        named_gains({12.1: 2.0}, roles)
    with pytest.raises(DearError, match="no means"):
        named_gains({"all": 2.0}, RoleMap.preset("paper"))


def test_a_model_shows_its_gains_and_does_not_lose_them(tmp_path: Path, monkeypatch) -> None:
    model = dear.create("dear-mini", classes=NAMES, method="zero-shot", device="cpu")
    changed = model.with_gain(texture=0)
    assert "gain texture=0" in repr(changed)
    assert "gain" not in repr(model)
    with pytest.raises(DearError, match="does not keep gains"):
        changed.save(tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(DearError, match="Gains are a mapping"):
        model.with_gain("texture=0")
    drawn = []
    monkeypatch.setattr(explain_module, "save_figure", lambda figure, *_, **__: drawn.append(figure))
    changed.explain(picture(0), tmp_path / "why.png")
    assert "(gain texture=0)" in drawn[0].subfigs[0]._suptitle.get_text()
    assert "has no attribute" not in drawn[0].subfigs[0].axes[1].get_xlabel()


def test_other_gains_for_the_same_image_do_not_run_the_tower_again(monkeypatch) -> None:
    model = dear.create("dear-mini", classes=NAMES, method="zero-shot", device="cpu")
    image, calls = picture(), []
    run = ImageTower.head_outputs
    monkeypatch.setattr(ImageTower, "head_outputs", lambda *a: calls.append(1) or run(*a))
    plain = model.predict(image)
    assert model.with_gain(all=1.0).predict(image).probability == pytest.approx(plain.probability, abs=1e-5)
    others = [model.with_gain(all=2.0).with_gain(color=gain) for gain in (0.0, 2.0, 3.0)]
    assert len({other.predict(image).probability for other in others}) == 3
    assert len(calls) == 1
    others[0].predict(picture(1))
    assert len(calls) == 2


def test_kept_images_may_be_dropped_while_others_are_encoded(monkeypatch) -> None:
    """Another thread of a server may drop them, for instance."""
    model = dear.create("dear-mini", classes=NAMES, method="zero-shot", device="cpu").with_gain(all=2.0)
    images = [picture(0), picture(1)]
    expected = [model.predict(image) for image in images]
    tower = model.model.backbone.image
    tower._kept.popitem()  # the second image
    run = ImageTower.head_outputs
    monkeypatch.setattr(ImageTower, "head_outputs", lambda *a: tower._kept.clear() or run(*a))
    for found, same in zip(model.predict(images), expected, strict=True):
        assert found.probability == pytest.approx(same.probability, abs=1e-5)


def test_a_method_that_adapts_the_tower_is_refused() -> None:
    model = dear.create("dear-mini", classes=NAMES, method="maple", device="cpu")
    with pytest.raises(DearError, match="leaves the image tower as it is"):
        model.with_gain(color=0)


def test_learned_gains_and_given_ones_multiply(mini, roles) -> None:
    model = dear.create("dear-mini", classes=NAMES, method="head-gains", device="cpu")
    method, pixels = model.model, some(mini)
    method.head_means.copy_(torch.randn_like(method.head_means))
    method.gains.fill_(2.0)
    found = model.with_gain(all=3.0).features(pixels)["cls"]
    gains = Gains(method.heads_from, method.head_means, torch.full_like(method.gains, 6.0))
    cls = gains.apply(mini.image, mini.image.head_outputs(pixels, method.heads_from)).frozen_cls
    torch.testing.assert_close(found, F.normalize(mini.image.project(cls), dim=-1), rtol=1e-4, atol=1e-5)


def test_explain_says_what_the_answer_would_be_without_each_attribute(roles) -> None:
    zero_shot = dear.create("dear-mini", classes=NAMES, method="zero-shot", device="cpu")
    pixels = zero_shot.preprocess(picture())[None]
    answer = explained(zero_shot, pixels, topk=1)
    found = {without.attribute: without for without in answer.without}
    assert list(found) == [name for name in roles.core if roles.heads_for(name)]
    assert answer.top == zero_shot.predict(picture(), topk=1).top
    for name, without in found.items():
        less = zero_shot.with_gain({name: 0})
        other, (logits,) = less.predict(picture()), logits_and_votes(less, encode_pixels(less, pixels))[0]
        assert (without.choice, without.probability) == (other.choice, pytest.approx(other.probability, abs=1e-5))
        first, second = (NAMES.index(place) for place, _ in zero_shot.predict(picture(), topk=2).top)
        assert without.lead == pytest.approx(float(logits[first] - logits[second]), abs=1e-4)
    tokens = dear.create("dear-mini", classes=NAMES, method="dear", device="cpu")
    _, (votes,) = logits_and_votes(tokens, encode_pixels(tokens, pixels))
    weights = tokens.model.fusion_weights()
    found = {without.attribute: without.probability for without in explained(tokens, pixels, topk=3).without}
    place = tokens.model.components.index("shape")
    rest = [i for i in range(len(weights)) if i != place]
    expected = ((weights[rest] / weights[rest].sum()) @ votes[rest]).softmax(0).max()
    assert found["shape"] == pytest.approx(float(expected), abs=1e-5)


def test_maps_of_attributes_are_the_attention_of_their_heads(mini, roles) -> None:
    """All heads of the last layer together see what CLS sees there; one head sees what PyTorch says of it."""
    method = dear.create("dear-mini", classes=NAMES, method="head-gains", device="cpu").model
    pixels, tower = some(mini), mini.image
    drawn = method.attention_maps(pixels)
    assert list(drawn) == ["cls", *(name for name in roles.core if roles.heads_for(name))]
    everywhere = [(tower.layers, head) for head in range(tower.heads)]
    maps = head_attention(method, pixels, {"all": everywhere, "one": [(tower.layers - 1, 1)]})
    torch.testing.assert_close(maps["all"], drawn["cls"])
    block = tower.blocks[tower.layers - 2]
    x = block.ln_1(tower.trunk(pixels, tower.layers - 2))
    _, weights = block.attn(x, x, x, average_attn_weights=False)
    seen = maps["one"].flatten(1)
    torch.testing.assert_close(seen, weights[:, 1, 0, 1:] * (seen > 0), rtol=1e-4, atol=1e-6)
    assert (seen > 0).float().mean() > 0.9  # registers are rare


def test_commands_take_gains(tmp_path: Path, monkeypatch, capsys) -> None:
    for number in range(4):
        picture(number).save(tmp_path / f"{number}.png")
    for name in ("red", "blue"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(2):
            picture(number).save(tmp_path / "photos" / name / f"{number}.png")
    dear.create("dear-mini", classes=NAMES, method="zero-shot", device="cpu").save(tmp_path / "run")
    image, run = str(tmp_path / "0.png"), str(tmp_path / "run")

    def out(*arguments: str, code: int = 0) -> str:
        assert main([*arguments, "--device", "cpu"]) == code
        captured = capsys.readouterr()
        return captured.err if code else captured.out

    plain, none, less = (
        json.loads(out("predict", run, image, "--json", *more))["probability"]
        for more in ([], ["--gain", "all=1"], ["--gain", "color=0", "--gain", "9.2=3"])
    )
    assert none == pytest.approx(plain, abs=1e-5)
    assert less != pytest.approx(plain, abs=1e-4)
    assert json.loads(out("predict", run, image, "--json", "--gain", "color=0"))["gain"] == {"color": 0.0}
    assert f"{image}  (gain color=0)" in out("predict", run, image, "--gain", "color=0")
    zero_shot = ["zero-shot", "--data", str(tmp_path / "photos"), "--model", "dear-mini"]
    assert "dear-mini with gain color=0 on" in out(*zero_shot, "--gain", "color=0")
    drawn = out("explain", run, image, "--out", str(tmp_path / "why.png"), "--gain", "color=2")
    assert "without texture:" in drawn
    assert "NAME=NUMBER" in out("predict", run, image, "--gain", "color", code=2)
    with monkeypatch.context() as context:  # a wrong name is refused before weights are loaded
        for place in ("dear.clip", "dear.training.backbone", "dear.training.adapter", "dear.gallery.encoders"):
            context.setattr(f"{place}.load_backbone", lambda *_, **__: pytest.fail("weights were loaded"))
        new = ["--out", str(tmp_path / "new")]
        for command in (["predict", run, image], ["explain", run, image], ["index", run, image, *new],
                        ["index", "--model", "dear-mini", image, *new], zero_shot):  # fmt: skip
            assert "There is no gain for 'smell': choose from all" in out(*command, "--gain", "smell=2", code=2)

    shown = out("index", run, str(tmp_path), "--out", str(tmp_path / "plain"))
    proposed = shown[shown.index("try: dear search") :].split()[2:]
    assert proposed[-2:] == ["--by", "color"], "the attributes of the frozen heads are beside cls"
    assert "score" in out(*[image if word == "IMAGE" else word for word in proposed])
    gallery = str(tmp_path / "gallery")
    shown = out("index", "--model", "dear-mini", str(tmp_path), "--out", gallery, "--gain", "color=0")
    assert shown.rstrip().endswith("--by color")
    assert json.loads((tmp_path / "gallery" / "gallery.json").read_text())["encoder"]["gain"] == {"color": 0.0}
    scores = [
        json.loads(out("search", gallery, "--image", image, "--topk", "1", "--json", *more))["score"]
        for more in ([], ["--gain", "color=3"])
    ]
    assert scores[0] == pytest.approx(1.0, abs=1e-3)  # found again: the query is seen as the gallery was
    assert scores[1] < scores[0] - 1e-4
    assert "a sentence has no heads" in out("search", gallery, "--text", "red", "--gain", "color=0", code=2)
    assert "not comparable" in out("index", "--model", "dear-mini", str(tmp_path), "--out", gallery, code=2)


def test_a_gallery_remembers_the_role_map_that_names_gains(roles, tmp_path: Path, monkeypatch, capsys) -> None:
    """A file of roles that only this gallery uses: its gains must come from there, from any folder."""
    (tmp_path / "photos").mkdir()
    for number in range(4):
        picture(number).save(tmp_path / "photos" / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    roles.shuffled(3).save(Path("own.json"))
    index = ["index", "--model", "dear-mini", "photos", "--out", "gallery", "--roles", "own.json", "--device", "cpu"]
    assert main(index) == 0
    monkeypatch.chdir("photos")
    capsys.readouterr()

    def best(*more: str) -> float:
        search = ["search", "../gallery", "--image", "0.png", "--topk", "1", "--json", "--device", "cpu"]
        assert main([*search, *more]) == 0
        return json.loads(capsys.readouterr().out)["score"]

    encoder = HeadEncoder.load("dear-mini", roles=str(tmp_path / "own.json"), device="cpu")
    pixels = encoder.preprocess(picture(0))[None]
    plain, scaled = (e.encode_image(pixels)["cls"][0] for e in (encoder, encoder.with_gain({"color": 0})))
    assert best("--gain", "color=0") == pytest.approx(float(plain @ scaled), abs=2e-3)
    assert float(plain @ scaled) < 1 - 5e-3
