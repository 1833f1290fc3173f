"""`keystone.attach(policy, k="auto")`: K from a stored profile or from the first round, without a trace."""

import copy
import json
import logging
import sys
import threading
import types

import pytest
import torch
from lerobot.configs import FeatureType, PolicyFeature
from profiling_timed import Timed

import keystone_robotics as keystone
from keystone_robotics.profiling.fingerprint import versions

OBSERVATION = torch.zeros(1, 2)


def test_the_first_round_finds_k_and_keeps_the_profile(timed, stored):
    handle = keystone.attach(timed, k="auto")
    assert timed(OBSERVATION).shape == (1, 8, 2)
    assert handle.k == 8
    assert handle.last.labels.shape == (1, 8)  # the first round is drawn with it already
    assert handle.stats["rounds"] == 1
    (kept,) = stored.glob("*.json")
    found = keystone.Profile.from_dict(json.loads(kept.read_text()))
    assert [cost.median for cost in found.costs] == [15.0, 15.0, 15.0, 31.0]  # 32 is hopeless, and not tried
    assert "first round" in found.note
    timed(OBSERVATION)
    assert handle.stats["rounds"] == 2
    keystone.detach(timed)
    assert type(timed) is Timed
    assert "_keystone" not in vars(timed)


def test_a_stored_profile_is_used(timed, caplog):
    found = keystone.profile(timed, OBSERVATION, rounds=5, budget_ms=40)
    timed.sampled.clear()
    handle = keystone.attach(timed, k="auto")
    with caplog.at_level(logging.INFO, "keystone"):
        timed(OBSERVATION)
    assert handle.k == found.best() == 16
    assert timed.sampled == [4, 1, 1, 1, 16]  # the self-check, and the round
    assert "a stored profile" in caplog.text


def test_a_profile_of_the_other_path_is_not_used(timed, stored):
    keystone.profile(timed, OBSERVATION, rounds=5, budget_ms=40)
    (kept,) = stored.glob("*.json")
    kept.write_text(kept.read_text().replace('"path": "plain"', '"path": "fast"'))
    handle = keystone.attach(timed, k="auto")
    timed(OBSERVATION)
    assert handle.k == 8  # found anew, without the budget that gave 16
    assert '"path": "plain"' in kept.read_text()


def test_a_budget_that_is_too_small_is_named(timed, caplog):
    keystone.profile(timed, OBSERVATION, k=(4, 16), rounds=5, budget_ms=14)
    handle = keystone.attach(timed, k="auto")
    assert "K=auto" in repr(handle)
    timed(OBSERVATION)
    assert "no larger K stays within 14 ms" in caplog.text
    assert "K=1" in repr(handle)


def test_a_word_that_is_not_auto(timed):
    with pytest.raises(ValueError, match='expected a whole number, or "auto"'):
        keystone.attach(timed, k="Auto")


def test_a_policy_that_waits_for_its_k_can_be_profiled(timed):
    handle = keystone.attach(timed, k="auto")
    assert keystone.profile(timed, OBSERVATION, k=(8, 16), rounds=5, budget_ms=40).best() == 16
    timed(OBSERVATION)
    assert handle.k == 16


def test_a_profile_holds_for_the_same_policy_device_and_batch_only(timed, clock, stored):
    keystone.profile(timed, OBSERVATION, k=(4,), rounds=5)
    keystone.profile(timed, torch.zeros(2, 2), k=(4,), rounds=5)
    other = Timed(clock)
    other.bias = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    keystone.profile(other, OBSERVATION, k=(4,), rounds=5)
    slower = Timed(clock)
    slower.config.num_steps = 50
    keystone.profile(slower, OBSERVATION, k=(4,), rounds=5)
    cameras = Timed(clock)
    cameras.config.input_features = {"top": PolicyFeature(FeatureType.VISUAL, (3, 224, 224))}
    keystone.profile(cameras, OBSERVATION, k=(4,), rounds=5)
    cameras.config.input_features["wrist"] = PolicyFeature(FeatureType.VISUAL, (3, 224, 224))
    keystone.profile(cameras, OBSERVATION, k=(4,), rounds=5)
    assert len(list(stored.glob("*.json"))) == 6
    trained = Timed(clock)
    trained.bias.data += 1  # other weights cost the same
    keystone.profile(trained, OBSERVATION, k=(4,), rounds=5)
    assert len(list(stored.glob("*.json"))) == 6


def test_what_else_a_program_has_imported_makes_no_difference(timed, stored, monkeypatch):
    for name in ("lerobot", "transformers", "numba"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    keystone.profile(timed, OBSERVATION, k=(4,), rounds=5)
    for name in ("lerobot", "transformers", "numba"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    timed.sampled.clear()
    keystone.attach(timed, k="auto")
    timed(OBSERVATION)
    assert timed.sampled == [4, 1, 1, 1, 4]  # the self-check, and the round: the stored profile was found
    assert len(list(stored.glob("*.json"))) == 1


def test_packages_count_where_a_part_of_the_policy_comes_from_them(timed):
    class Backbone(torch.nn.Module):
        """Someone else's."""

    Backbone.__module__ = "transformers.models.some"

    class Own(Backbone):
        """That inherits from it."""

    handle = keystone.attach(timed, k=2)
    assert not {"lerobot", "transformers"} & set(versions(handle))
    timed.backbone = torch.nn.Sequential(Own())
    assert versions(handle)["transformers"]
    assert "lerobot" not in versions(handle)


def test_the_folder_can_be_given(timed, tmp_path, stored):
    keystone.attach(timed, k="auto", profiles=tmp_path / "mine")
    timed(OBSERVATION)
    assert list((tmp_path / "mine").glob("*.json"))
    assert not stored.exists()


def test_the_encoder_counts_even_if_it_takes_its_input_apart(clock):
    class Popping(Timed):
        def forward(self, observation):
            return self.sample(self.encode({"state": observation}), torch.randn(len(observation), 8, 2))

        def encode(self, observation):
            return super().encode(observation.pop("state"))  # a second call with the same dictionary would fail

    policy = Popping(clock, free=4, encode_ms=1000.0)
    handle = keystone.attach(policy, k="auto")
    policy(OBSERVATION)
    assert handle.k == 16  # 1034 ms are within 5 % of 1010, and the 1066 of K = 32 are not


def test_memory_that_ends_limits_k(clock, stored):
    policy = Timed(clock, free=100, fits=10)
    handle = keystone.attach(policy, k="auto")
    policy(OBSERVATION)
    assert handle.k == 8
    (kept,) = stored.glob("*.json")
    assert json.loads(kept.read_text())["stopped"] == 16


def test_where_nothing_is_free_it_says_that_it_is_off(clock, caplog):
    policy = Timed(clock, free=0)
    handle = keystone.attach(policy, k="auto")
    policy(OBSERVATION)
    assert handle.k == 1
    assert "KeyStone is off (K=1)" in caplog.text
    policy(OBSERVATION)
    assert handle.stats["rounds"] == 0  # that round, and from then on, the policy runs its own code


def test_a_k_given_before_the_first_round_is_final(timed, stored):
    handle = keystone.attach(timed, k="auto")
    handle.k = 5
    timed(OBSERVATION)
    assert handle.last.labels.shape == (1, 5)
    assert not stored.exists()


def test_threads_wait_for_the_first_and_copies_find_it_themselves(timed, clock):
    handle = keystone.attach(timed, k="auto")
    twin = copy.deepcopy(timed)
    twin.clock = clock
    threads = [threading.Thread(target=timed, args=(OBSERVATION,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handle.k == 8
    assert handle.stats["rounds"] == 3
    twin(OBSERVATION)
    assert keystone.attached(twin).k == 8


def test_a_method_named_by_the_user(clock):
    class Policy(torch.nn.Module):
        def act(self, observation):
            clock.turn(1)
            return observation[:, None] + torch.randn(len(observation), 8, 2)

    policy = Policy()
    handle = keystone.attach(policy, k="auto", site="act")
    policy.act(OBSERVATION)
    assert handle.k == 32  # vectorised: the method itself runs once, whatever K


@pytest.mark.parametrize("content", ["{", "[]", '{"costs": []}'])
def test_a_stored_profile_that_is_broken_is_made_again(content, timed, stored, caplog):
    keystone.attach(timed, k="auto")
    timed(OBSERVATION)
    keystone.detach(timed)
    (kept,) = stored.glob("*.json")
    kept.write_text(content)
    handle = keystone.attach(timed, k="auto")
    timed(OBSERVATION)
    assert handle.k == 8
    assert "cannot be read and is made again" in caplog.text


def test_where_nothing_can_be_kept_it_goes_on(timed, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    handle = keystone.attach(timed, k="auto", profiles=tmp_path / "file" / "inside")
    timed(OBSERVATION)
    assert handle.k == 8
    assert "could not be kept" in caplog.text


@pytest.mark.parametrize("k", ["Auto", "16", 0, 2.5])
def test_other_words_are_refused(k, timed):
    with pytest.raises((ValueError, TypeError), match="k="):
        keystone.attach(timed, k=k)
    assert type(timed) is Timed
