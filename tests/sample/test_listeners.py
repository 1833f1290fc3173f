"""Listeners of rounds: any number, the same event for all, and none of them ever costs a round."""

import dataclasses
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import keystone_robotics as keystone
from keystone_robotics.integrations import RoundLog, attach_with_log


class Policy(nn.Module):
    def forward(self, observation):
        return self.sample(self.encode(observation), torch.randn(len(observation), 8, 2))

    def encode(self, observation):
        return observation

    def sample(self, context, noise):
        return context[:, None] + noise


@pytest.fixture
def policy():
    return Policy()


ONE = torch.zeros(1, 2)


def test_all_listeners_get_the_same_event_in_their_order(policy):
    handle = keystone.attach(policy, k=4)
    heard = []
    for name in ("first", "second"):
        handle.subscribe(lambda event, name=name: heard.append((name, event)))
    policy(ONE)
    (first, event), (second, same) = heard
    assert (first, second) == ("first", "second")
    assert event is same
    assert (event.number, event.k, event.path, len(event.seeds)) == (0, 4, "plain", 1)
    assert event.candidates.shape == (1, 4, 8, 2)
    assert event.selection is handle.last
    assert min(event.times.encode, event.times.sample, event.times.select) > 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.k = 5


def test_one_listener_can_be_removed_and_only_this_one(policy):
    handle = keystone.attach(policy, k=4)
    heard = []
    remove, *_ = [handle.subscribe(heard.append) for _ in range(2)]
    policy(ONE)
    remove()
    remove()
    policy(ONE)
    assert [event.number for event in heard] == [0, 0, 1]


def test_a_listener_that_raises_is_logged_once_and_removed(policy, caplog):
    handle = keystone.attach(policy, k=4)
    heard = []
    handle.subscribe(lambda event: 1 / 0)
    handle.subscribe(heard.append)
    with caplog.at_level(logging.ERROR, "keystone"):
        chunks = [policy(ONE) for _ in range(3)]
    assert all(chunk.isfinite().all() for chunk in chunks)
    assert len(heard) == 3
    (record,) = caplog.records
    assert "failed in round 0 and was removed" in record.message
    assert record.exc_info[0] is ZeroDivisionError


def test_a_listener_may_remove_itself_and_others_while_it_is_told(policy):
    handle = keystone.attach(policy, k=4)
    heard = []
    remove = handle.subscribe(lambda event: (remove(), heard.append("once")))
    handle.subscribe(lambda event: heard.append("always"))
    policy(ONE)
    policy(ONE)
    assert heard == ["once", "always", "always"]


def test_what_is_no_function_is_refused(policy):
    with pytest.raises(TypeError, match="expected a function that takes a RoundEvent"):
        keystone.attach(policy, k=4).subscribe("round.log")


def test_the_old_slot_is_gone(policy):
    with pytest.raises(AttributeError):
        keystone.attach(policy, k=4).on_round = print


def test_one_candidate_is_reported_as_the_policys_own_and_stays_its_own(policy):
    torch.manual_seed(3)
    alone = policy(ONE)
    handle = keystone.attach(policy, k=1)
    heard = []
    handle.subscribe(heard.append)
    torch.manual_seed(3)
    assert torch.equal(policy(ONE), alone)
    (event,) = heard
    assert (event.path, event.k, event.seeds) == ("own", 1, ())
    assert torch.equal(event.selection.chunk, alone)
    assert handle.stats["rounds"] == 0


def test_a_chunk_that_is_not_finite_is_the_policys_own_affair_with_one_candidate(policy):
    handle = keystone.attach(policy, k=1)
    heard = []
    handle.subscribe(heard.append)
    assert policy(torch.full((1, 2), float("nan"))).isnan().all()
    assert heard == []


def test_rehearsals_are_neither_counted_nor_reported_nor_remembered(policy):
    handle = keystone.attach(policy, k=4, rule="coherent", seed=1, execute=4)
    heard = []
    handle.subscribe(heard.append)
    with handle.rehearsal():
        rehearsed = policy(ONE)
    assert heard == []
    assert handle.stats["rounds"] == 0
    assert torch.equal(policy(ONE), rehearsed), "the first round that counts has the noise of the first round"
    assert [event.number for event in heard] == [0]


def test_a_copied_policy_reports_to_the_same_listeners(policy):
    import copy

    handle = keystone.attach(policy, k=4)
    heard = []
    handle.subscribe(heard.append)
    copy.deepcopy(policy)(ONE)
    assert len(heard) == 1
    assert handle.stats["rounds"] == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_ends_it_and_the_round_is_not_lost(policy, error):
    def stop(event):
        raise error

    handle = keystone.attach(policy, k=4)
    handle.subscribe(stop)
    with pytest.raises(error):
        policy(ONE)
    assert handle.last.chunk.isfinite().all()
    with pytest.raises(error):  # it is still subscribed, and no lock is held
        policy(ONE)


def check_the_log_ends_once(policy, caplog, reason):
    with caplog.at_level(logging.ERROR, "keystone"):
        chunks = [policy(ONE) for _ in range(3)]
    assert all(chunk.isfinite().all() for chunk in chunks)
    (record,) = caplog.records
    assert f"ends before round 0: {reason}" in record.message


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is always full")
def test_a_round_log_on_a_full_disk_costs_no_round(policy, caplog):
    attach_with_log(policy, keystone.Spec(k=4), {"KEYSTONE_LOG": "/dev/full"})
    check_the_log_ends_once(policy, caplog, "No space left on device")


def test_a_round_log_whose_folder_disappears_costs_no_round(policy, caplog, tmp_path):
    path = tmp_path / "logs" / "rounds.jsonl"
    attach_with_log(policy, keystone.Spec(k=4), {"KEYSTONE_LOG": str(path)})
    path.unlink()
    path.parent.rmdir()
    check_the_log_ends_once(policy, caplog, "No such file or directory")


def test_a_round_log_that_cannot_be_written_is_refused_when_it_is_made(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "rounds.jsonl"):
        with pytest.raises(keystone.KeystoneError, match=r"the round log .* cannot be written: "):
            RoundLog(path)
