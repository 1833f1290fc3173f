"""H-RDT's runner, with and without groups of query heads and fused attention."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import rdt_runners

from upstream_like import contract

NAME = "H_RDT"


@pytest.fixture(scope="module", params=[(2, True), (None, False)], ids=["grouped-fused", "plain"])
def runner(checkout: Callable[..., Path], request: pytest.FixtureRequest) -> Any:
    checkout(NAME)
    return rdt_runners.build_h_rdt(*request.param)


class TestRunner(rdt_runners.RunnerTests):
    NAME = NAME

    @pytest.mark.parametrize("path", ["plain", "fast"])
    def test_without_language(self, runner: Any, record: Callable[..., None], path: str) -> None:
        predict = partial(rdt_runners.predict, runner, 3, with_language=False)
        found = contract.largest_difference(runner, predict, 4, path)
        record(NAME, "without language", found)
        assert found < 1e-5
