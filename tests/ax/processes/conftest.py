from collections.abc import Iterator

import pytest
from tests.support.node_process import RunningNode, running_node


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with running_node(tmp_path_factory.mktemp("ax"), {}) as started:
        yield started
