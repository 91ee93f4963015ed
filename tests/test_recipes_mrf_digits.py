"""The recipe of the digits runs, and what it writes holds together."""

import json
import statistics
from dataclasses import replace

import pytest
import torch
from torch import nn

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from recipes import mrf_digits
from recipes._mrf_digits_networks import NETWORKS, PIXELS, converted, sigmoid


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    made = ["--small", "--epochs", "3", "--workers", "1", "--json", str(folder / "digits.json"), "--plots", str(folder)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mrf_digits, "SMALL", replace(mrf_digits.SMALL, rates=(0.03,)))
        mrf_digits.main(made)
    assert (folder / "mrf_digits.png").stat().st_size > 10_000
    return json.loads((folder / "digits.json").read_text())["results"]


def test_all_networks_learn_something(results):
    networks = results["networks"]
    assert list(networks) == [*NETWORKS, *mrf_digits.CONTINUED]
    for name, found in networks.items():
        assert found["accuracy"][0] > 50, name  # chance is 10
        assert found["accuracy"][0] == pytest.approx(statistics.mean(found["accuracies"]))
        assert min(found["losses"]) > 0
        assert found["loss"][1] >= 0
    assert networks["sigmoid"]["parameters"] == networks["belief propagation"]["parameters"]
    assert networks["lambda learnt"]["parameters"] == networks["sigmoid"]["parameters"] + 2


def test_lambda_goes_where_it_was_sent(results):
    networks = results["networks"]
    assert set(networks["sigmoid, continued"]["lambdas"]) == {0}
    assert set(networks["lambda 1 at once"]["lambdas"]) == {1}
    moved = networks["lambda moved from 0 to 1"]["lambdas"]
    assert moved == sorted(moved)
    assert 0 < moved[0] < moved[-1] == 1
    assert len(results["weights fixed"]) == len(moved) + 1
    assert all(value != 0.5 for each in networks["lambda learnt"]["lambdas"] for value in each)


def test_differences_are_those_of_the_means(results):
    for name, found in results["differences"].items():
        one, other = name.split(" - ")
        means = [results["networks"][each]["loss"][0] for each in (one, other)]
        assert found["loss over seeds"][0] == pytest.approx(means[0] - means[1], abs=1e-6)
        assert found["loss over digits"][0] == pytest.approx(means[0] - means[1], abs=1e-6)


def test_the_rate_is_the_best_of_the_first_seeds():
    setting = replace(mrf_digits.SMALL, seeds=3, choosing=2, rates=(0.1, 0.2, 0.3))
    # The best mean over both is neither the best of the first seed nor that of the second.
    losses = {("a", 0.1): (1, 9), ("a", 0.2): (9, 1), ("a", 0.3): (2, 2), ("b", 0.1): (3, 3)}
    asked = []

    def runner(jobs):
        asked.extend(jobs)
        for job in jobs:
            loss = losses.get((job.name, job.rate), (4, 4))[job.seed] if job.seed < 2 else 0
            yield mrf_digits.Run(job, validation=loss, losses=torch.ones(4))

    starts = [{"w": torch.tensor(float(seed))} for seed in range(3)]
    chosen = mrf_digits.all_seeds(["a", "b"], starts, setting, runner)
    assert [[(run.job.rate, run.job.seed) for run in chosen[name]] for name in "ab"] == [
        [(0.3, 0), (0.3, 1), (0.3, 2)],
        [(0.1, 0), (0.1, 1), (0.1, 2)],
    ]
    assert len(asked) == 2 * 3 * 2 + 2
    assert all(float(job.start["w"]) == job.seed for job in asked)


def test_options():
    _, setting = mrf_digits.options(["--seeds", "2"])
    assert (setting.seeds, setting.choosing, setting.epochs) == (2, 2, mrf_digits.FULL.epochs)
    with pytest.raises(SystemExit):
        mrf_digits.options(["--seeds", "1"])


def test_the_interval_is_that_of_student():
    # For two values a and b it is 12.7062 |a - b| / 2.
    assert mrf_digits.interval(torch.tensor([1.0, 3.0])) == (2.0, pytest.approx(12.7062, rel=1e-5))


def test_a_converted_network_is_the_sigmoid_network():
    network, x = sigmoid(8), torch.rand(5, PIXELS)
    own = converted(network)
    assert not any(isinstance(part, nn.Sigmoid) for part in own)
    torch.testing.assert_close(own(x), network(x))


def test_the_digits_are_divided_without_overlap():
    data = mrf_digits.load()
    assert [len(x) for x, _ in data] == [1000, 297, 500]
    rows = torch.cat([torch.cat([x, y[:, None]], 1) for x, y in data])
    whole = mrf_digits.importlib.import_module("sklearn.datasets").load_digits()
    wanted = torch.cat([torch.tensor(whole.data / 16), torch.tensor(whole.target)[:, None]], 1).float()
    assert sorted(rows.tolist()) == sorted(wanted.tolist())
    assert float(rows[:, :-1].min()) == 0
    assert float(rows[:, :-1].max()) == 1
