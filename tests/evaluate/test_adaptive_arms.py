"""Arms whose K or horizon follows the agreement of the candidates: every episode of a batch has its own."""

from dataclasses import replace

import numpy as np
import pytest

from keystone_robotics.evaluate.config import Shard
from keystone_robotics.evaluate.worker import Worker
from keystone_robotics.spec import Spec

ARM = "core-mean:k=3..9:0.6,execute=1..5:0.6"


@pytest.fixture
def rolled_out(toy):
    settings = replace(toy("reach"), keep_rounds=True)
    return settings, Worker(settings).run(Shard(Spec.parse(ARM), "reach", 0, 0, 4)).episodes


def test_rows_of_one_batch_execute_what_their_own_candidates_agree_on(rolled_out):
    _, episodes = rolled_out
    lengths = [[len(one.actions) for one in episode.kept_rounds] for episode in episodes]
    assert len({tuple(one) for one in lengths}) > 1
    assert {1, 5} < {length for one in lengths for length in one}  # and others between
    for episode, own in zip(episodes, lengths, strict=True):
        assert sum(own) == episode.steps
        assert len(own) == episode.rounds
        assert [one.step for one in episode.kept_rounds] == [sum(own[:place]) for place in range(len(own))]


def test_a_round_is_stored_with_the_candidates_that_were_drawn_for_it(rolled_out):
    _, episodes = rolled_out
    for episode in episodes:
        drawn = [len(one.candidates) for one in episode.kept_rounds]
        assert set(drawn) <= {3, 9}
        assert all((one.labels >= 0).all() and len(one.labels) == len(one.candidates) for one in episode.kept_rounds)
        assert episode.drawn == np.mean(drawn)
    assert 3 < np.mean([episode.drawn for episode in episodes]) < 9


def test_an_episode_does_not_depend_on_its_batch(rolled_out):
    settings, together = rolled_out
    worker = Worker(settings)
    for one in together:
        (alone,) = worker.run(Shard(Spec.parse(ARM), "reach", 0, one.episode, 1)).episodes
        assert (alone.success, alone.steps, alone.rounds, alone.drawn) == (
            one.success,
            one.steps,
            one.rounds,
            one.drawn,
        )
