"""Files that are there as a whole or not at all, whoever writes them."""

import pytest

from keystone_robotics.files import atomic_write


def test_two_who_write_the_same_file_at_the_same_time_do_not_meet(tmp_path):
    """Two threads with copies of a policy that find their K, say, and keep the same profile."""
    path = tmp_path / "profile.json"
    with atomic_write(path) as slow:
        slow.write_text("the first")
        with atomic_write(path) as quick:
            quick.write_text("the second")
        assert path.read_text() == "the second"
    assert path.read_text() == "the first"
    assert list(tmp_path.iterdir()) == [path]


def test_after_an_error_nothing_is_left_and_nothing_is_lost(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text("before")

    def fail(draft):
        draft.write_text("half")
        raise OSError

    with pytest.raises(OSError), atomic_write(path) as draft:  # noqa: PT011 (it is ours)
        fail(draft)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]
