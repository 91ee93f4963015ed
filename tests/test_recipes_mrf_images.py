"""The experiment on images of drawn shapes: its data, its measures, and a run of it at its smallest."""

import json
import math

import pytest
import torch
from torch import nn

from deepunfold.mrf import infer
from recipes import mrf_images
from recipes._drawn_shapes import Flips, Gaussian, draw
from recipes._mrf_images_measures import bits, cross_entropy, interval, wrong

TINY = mrf_images.Setting(
    size=24, window=16, drawn=20, validation=2, test=4, layers=(3,), updates=20, batch=2, seeds=2, steps=10
)


def test_images_are_decided_by_their_seed_and_have_both_colours():
    images = draw(30, 40, 1)
    assert torch.equal(images, draw(30, 40, 1))
    assert not torch.equal(images, draw(30, 40, 2))
    assert images.unique().tolist() == [0, 1]
    assert 0.05 < float(images.float().mean()) < 0.5
    alike = (images[:, 1:] == images[:, :-1]).float().mean()
    assert float(alike) > 0.9  # shapes, not specks


@pytest.mark.parametrize("noise", [Flips(0.2), Gaussian(2.0)])
def test_evidence_is_the_likelihood_of_what_is_seen(noise):
    """Each pixel alone has the posterior of Bayes' rule with equal priors, and is wrong as often as the noise says."""
    labels = draw(20, 32, 3).flatten(1)
    seen = noise.see(labels, torch.Generator().manual_seed(0))
    alone = mrf_images.model(32, noise, 0.0).fields(seen).log_softmax(-1)
    if isinstance(noise, Flips):
        posterior = torch.where(seen == 1, 0.8, 0.2)
        often = 0.2
    else:
        density = [torch.distributions.Normal(mean, 2.0).log_prob(seen) for mean in (-1.0, 1.0)]
        posterior = torch.stack(density, -1).softmax(-1)[..., 1]
        often = 0.5 * math.erfc(0.5 / math.sqrt(2))
    torch.testing.assert_close(alone[..., 1].exp(), posterior, atol=1e-5, rtol=1e-5)
    assert abs(float(wrong(alone, labels).mean()) / 100 - often) < 0.01


@pytest.mark.parametrize("method", mrf_images.UNFOLDED)
def test_untrained_networks_are_the_classic_method_on_grids_of_any_size(method):
    """With the damping of the networks, and with parameters that were copied from a smaller grid."""
    noise = Flips(0.2)
    seen = noise.see(draw(3, 12, 0).flatten(1), torch.Generator().manual_seed(0))
    small, large = (mrf_images.network(method, 4, "untied", noise, 0.9, size) for size in (8, 12))
    with torch.no_grad():
        for own, other in zip(large.parameters(), small.parameters(), strict=True):
            own.copy_(other)
    settings = {"alpha": 0.9, "estimator": nn.Identity()}
    classic = mrf_images.CLASSIC[method](mrf_images.model(12, noise, 0.9), **settings)
    torch.testing.assert_close(large(seen), infer(classic, seen, 4), atol=1e-4, rtol=1e-4)


def test_measures():
    labels = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]])
    output = torch.tensor([0.75, 0.25]).log().expand(2, 4, 2)
    assert wrong(output, labels).tolist() == [50.0, 100.0]
    assert bits(output, labels).tolist() == pytest.approx([1 + math.log2(4 / 3) / 2, 2.0])
    torch.testing.assert_close(bits(output, labels).mean() * math.log(2), cross_entropy(output, labels))
    assert interval(torch.full((3, 5), 2.0)) == [2.0, 2.0]
    values = torch.randn(3, 400, generator=torch.Generator().manual_seed(0))
    low, high = interval(values)
    assert low < float(values.mean()) < high
    assert high - low < 0.3


def test_smallest_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(mrf_images, "SMALL", TINY)
    monkeypatch.setattr(mrf_images, "COUPLINGS", (0.6, 0.9))
    path = tmp_path / "mrf_images.json"
    mrf_images.main(["--small", "--json", str(path), "--plots", str(tmp_path / "plots")])
    assert (tmp_path / "plots" / "mrf_images.png").stat().st_size > 10_000
    assert "belief propagation, 3 layers, untied" in capsys.readouterr().out
    results = json.loads(path.read_text())["results"]
    for noise in mrf_images.NOISES:
        methods = results[noise]["methods"]
        assert len(methods) == 3 + 3 + 4
        alone = methods["each pixel alone"]
        for name, one in methods.items():
            low, high = one["interval"]
            assert low <= one["error"] <= high
            if name not in ("each pixel alone", "convolutions"):
                assert one["error"] < 0.7 * alone["error"], name
        tied, untied = (methods[f"mean field, 3 layers, {tie}"] for tie in ("tied", "untied"))
        assert untied["parameters"] == 3 * tied["parameters"]
        change, low, high = results[noise]["differences"]["untying"][
            "mean field, 3 layers, untied, less mean field, 3 layers, tied"
        ]["errors"]
        assert change == pytest.approx(untied["error"] - tied["error"], abs=1e-4)
        assert low <= change <= high
