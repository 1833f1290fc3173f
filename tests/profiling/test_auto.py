"""`keystone.attach(policy, k="auto")`: K from a stored profile after the first round, or measured after the second."""

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
from keystone_robotics.profiling.fingerprint import fingerprint_architecture, versions
from keystone_robotics.sample.settings import trial

OBSERVATION = torch.zeros(1, 2)


def act(policy, times=2):
    """As many rounds as K takes to be found."""
    for _ in range(times):
        policy(OBSERVATION)


def test_the_second_round_finds_k_and_stores_the_profile(timed, stored):
    handle = keystone.attach(timed, k="auto")
    assert timed(OBSERVATION).shape == (1, 8, 2)
    assert handle.last.labels.shape == (1, 4)
    assert "K=auto" in repr(handle)
    timed(OBSERVATION)
    assert handle.k == 8
    assert "K=8" in repr(handle)
    (kept,) = stored.glob("*.json")
    found = keystone.Profile.from_dict(json.loads(kept.read_text()))
    assert [cost.median for cost in found.costs] == pytest.approx([15, 15, 15, 31])  # 32 is hopeless, and not tried
    assert "second round" in found.note
    timed.sampled.clear()
    timed(OBSERVATION)
    assert timed.sampled == [8]
    assert handle.stats["rounds"] == 3  # measurements are not rounds
    keystone.detach(timed)
    assert type(timed) is Timed
    assert "_keystone" not in vars(timed)


def test_rounds_are_kept_for_replay_only_as_long_as_k_is_not_known(timed):
    handle = keystone.attach(timed, k="auto", keep=1)
    timed(OBSERVATION)
    with handle.rehearsal():  # is neither counted nor kept
        timed(OBSERVATION)
    timed(OBSERVATION)
    assert list(handle.engine.kept) == [1]
    timed(OBSERVATION)
    assert list(handle.engine.kept) == [2]
    assert not handle.engine.listeners


def test_measuring_leaves_the_random_numbers_and_the_listeners_alone(timed):
    def events_of(**options):
        handle, events = keystone.attach(timed, check=False, **options), []
        handle.subscribe(events.append)
        torch.manual_seed(3)
        act(timed, 3)
        keystone.detach(timed)
        return events

    automatic, given = events_of(k="auto"), events_of(k=4)
    assert [event.k for event in automatic] == [4, 4, 8]
    assert [event.seeds for event in automatic] == [event.seeds for event in given]
    assert [event.number for event in automatic] == [0, 1, 2]


def test_a_stored_profile_is_used_after_the_first_round(timed, caplog):
    found = keystone.profile(timed, OBSERVATION, rounds=30, budget_ms=40)
    timed.sampled.clear()
    handle = keystone.attach(timed, k="auto")
    with caplog.at_level(logging.INFO, "keystone"):
        timed(OBSERVATION)
    assert handle.k == found.best() == 16
    assert timed.sampled == [4, 1, 1, 1]  # the round, and its self-check
    assert "a stored profile" in caplog.text


def test_a_profile_of_the_other_path_is_not_used(timed, stored):
    keystone.profile(timed, OBSERVATION, rounds=30, budget_ms=40)
    (kept,) = stored.glob("*.json")
    kept.write_text(kept.read_text().replace('"path": "plain"', '"path": "fast"'))
    handle = keystone.attach(timed, k="auto")
    act(timed)
    assert handle.k == 8  # found anew, without the budget that gave 16
    assert '"path": "plain"' in kept.read_text()


def test_a_budget_that_is_too_small_is_named(timed, caplog):
    keystone.profile(timed, OBSERVATION, k=(4, 16), rounds=30, budget_ms=14)
    handle = keystone.attach(timed, k="auto")
    timed(OBSERVATION)
    assert "no larger K stays within 14 ms" in caplog.text
    assert "K=1" in repr(handle)


def test_a_policy_that_waits_for_its_k_can_be_profiled(timed):
    handle = keystone.attach(timed, k="auto")
    timed(OBSERVATION)
    assert keystone.profile(timed, OBSERVATION, k=(8, 16), rounds=30, budget_ms=40).best() == 16
    assert "K=auto" in repr(handle)
    assert handle.stats["rounds"] == 1
    timed(OBSERVATION)
    assert handle.k == 16


def test_a_profile_holds_for_the_same_policy_device_and_batch_only(timed, clock):
    def fingerprint(policy=timed, batch=1):
        handle = keystone.attach(policy, k=4)
        try:
            return fingerprint_architecture(handle, torch.device("cpu"), batch)
        finally:
            keystone.detach(policy)

    smaller, slower, one_camera, two_cameras = (Timed(clock) for _ in range(4))
    smaller.bias = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
    slower.config.num_steps = 50
    one_camera.config.input_features = {"top": PolicyFeature(FeatureType.VISUAL, (3, 224, 224))}
    two_cameras.config.input_features = {
        **one_camera.config.input_features,
        "wrist": PolicyFeature(FeatureType.VISUAL, (3, 224, 224)),
    }
    others = [fingerprint(policy) for policy in (smaller, slower, one_camera, two_cameras)]
    assert len({fingerprint(), fingerprint(batch=2), *others}) == 6
    trained = Timed(clock)
    trained.bias.data += 1  # other weights cost the same
    assert fingerprint(trained) == fingerprint()


def test_what_else_a_program_has_imported_makes_no_difference(timed, stored, monkeypatch):
    for name in ("lerobot", "transformers", "numba"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    keystone.profile(timed, OBSERVATION, k=(4,), rounds=5)
    for name in ("lerobot", "transformers", "numba"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    handle = keystone.attach(timed, k="auto")
    timed(OBSERVATION)
    assert handle.engine.k_given  # the stored profile was found
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
    act(timed)
    assert list((tmp_path / "mine").glob("*.json"))
    assert not stored.exists()


def test_the_encoder_counts_although_it_is_not_called_again(clock):
    policy = Timed(clock, free=4, encode_ms=1000)
    handle = keystone.attach(policy, k="auto")
    act(policy)
    assert handle.k == 16  # 1034 ms are within 5 % of 1010, and the 1066 of K = 32 are not


@pytest.mark.parametrize("later", [False, True])
def test_memory_that_ends_limits_k(later, clock, stored):
    class Leaking(Timed):
        def sample(self, context, noise):
            if later and self.sampled.count(16) == 4:
                self.fits = 10
            return super().sample(context, noise)

    policy = Leaking(clock, free=100, fits=100 if later else 10)
    handle = keystone.attach(policy, k="auto")
    act(policy)
    assert handle.k == 8
    (kept,) = stored.glob("*.json")
    assert json.loads(kept.read_text())["stopped"] == 16


def test_where_nothing_is_free_it_says_that_it_is_off(clock, caplog):
    policy = Timed(clock, free=0)
    handle = keystone.attach(policy, k="auto")
    act(policy)
    assert handle.k == 1
    assert "KeyStone is off (K=1)" in caplog.text
    policy(OBSERVATION)
    assert handle.stats["rounds"] == 2  # from then on the policy runs its own code


@pytest.mark.parametrize("rounds", [0, 1])
def test_a_k_that_the_user_sets_before_it_is_found_is_final(rounds, timed, stored):
    handle = keystone.attach(timed, k="auto")
    act(timed, rounds)
    handle.k = 5
    act(timed)
    assert handle.last.labels.shape == (1, 5)
    assert not stored.exists()
    assert not handle.engine.kept
    assert not handle.engine.listeners


def test_a_k_that_the_user_sets_meanwhile_is_final(clock):
    class Impatient(Timed):
        def sample(self, context, noise):
            if len(noise) == 32:
                handle.k = 5
            return super().sample(context, noise)

    policy = Impatient(clock, free=100)
    handle = keystone.attach(policy, k="auto")
    act(policy)
    assert handle.k == 5


def elsewhere(function, *args):
    """Call it in another thread."""
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def test_a_trial_does_not_end_the_search_in_another_thread(timed):
    handle = keystone.attach(timed, k="auto")
    with trial(handle.engine):
        handle.k = 2
        elsewhere(act, timed)
    act(timed)
    assert handle.k == 8
    assert not handle.engine.listeners


def test_a_k_that_the_user_sets_during_a_trial_is_final(timed):
    handle = keystone.attach(timed, k=8)
    with trial(handle.engine):
        handle.k = 3
        elsewhere(setattr, handle, "k", 16)
        with trial(handle.engine):
            handle.k = 2
    assert handle.k == 16
    with trial(handle.engine):
        handle.k = 2
    assert handle.k == 16


def test_several_threads_at_once(timed):
    handle, failures = keystone.attach(timed, k="auto"), []
    handle.subscribe(lambda event: failures.append(event) if event.k not in (4, 8) else None)
    barrier = threading.Barrier(3)

    def client():
        barrier.wait()
        act(timed, 20)

    threads = [threading.Thread(target=client) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert handle.k == 8
    assert handle.stats["rounds"] == 60
    assert not failures
    assert not handle.engine.kept


def test_other_threads_that_draw_more_rounds_than_are_kept_do_not_disturb(clock, caplog):
    class Busy(Timed):
        def sample(self, context, noise):
            if len(noise) == 16:  # being measured
                thread = threading.Thread(target=act, args=(other, 10))
                thread.start()
                thread.join()
            return super().sample(context, noise)

    policy = Busy(clock)
    other = policy
    handle = keystone.attach(policy, k="auto")
    act(policy)
    assert handle.k == 8
    assert "failed" not in caplog.text


def test_copies_find_their_k_themselves(timed, clock):
    handle = keystone.attach(timed, k="auto")
    timed(OBSERVATION)
    twin = copy.deepcopy(timed)
    twin.clock, twin.free = clock, 32
    twin_handle = keystone.attached(twin)
    twin(OBSERVATION)
    assert twin_handle.k == 32
    assert not twin_handle.engine.kept
    assert "K=auto" in repr(handle)


def test_a_failure_costs_no_round(clock, caplog):
    class Failing(Timed):
        def sample(self, context, noise):
            if len(noise) == 8:
                raise RuntimeError("no eight")
            return super().sample(context, noise)

    policy = Failing(clock)
    handle = keystone.attach(policy, k="auto")
    act(policy, 3)
    assert handle.stats["rounds"] == 3
    assert "K=4" in repr(handle)
    assert caplog.text.count("failed in round 1 and was removed") == 1
    assert not handle.engine.kept


def test_a_method_named_by_the_user(clock):
    class Policy(torch.nn.Module):
        def act(self, observation):
            clock.turn(1)
            return observation[:, None] + torch.randn(len(observation), 8, 2)

    policy = Policy()
    handle = keystone.attach(policy, k="auto", site="act")
    policy.act(OBSERVATION)
    policy.act(OBSERVATION)
    assert handle.k == 32  # vectorised: the method itself runs once, whatever K


@pytest.mark.parametrize("content", ["{", "[]", '{"costs": []}'])
def test_a_stored_profile_that_is_broken_is_made_again(content, timed, stored, caplog):
    keystone.attach(timed, k="auto")
    act(timed)
    keystone.detach(timed)
    (kept,) = stored.glob("*.json")
    kept.write_text(content)
    handle = keystone.attach(timed, k="auto")
    act(timed)
    assert handle.k == 8
    assert "cannot be read and is made again" in caplog.text
    assert keystone.Profile.from_dict(json.loads(kept.read_text())).best() == 8


def test_where_nothing_can_be_stored_it_goes_on(timed, tmp_path, caplog):
    (tmp_path / "file").write_text("")
    handle = keystone.attach(timed, k="auto", profiles=tmp_path / "file" / "inside")
    act(timed)
    assert handle.k == 8
    assert "could not be stored" in caplog.text


@pytest.mark.parametrize("k", ["Auto", "16", 0, 2.5])
def test_other_words_are_refused(k, timed):
    with pytest.raises((ValueError, TypeError), match="k="):
        keystone.attach(timed, k=k)
    assert type(timed) is Timed
