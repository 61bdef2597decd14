from collections.abc import Iterator

import pytest
from tests.drivers.reference_node import reference_node
from tests.support.node_process import RunningNode


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    with reference_node(tmp_path_factory.mktemp("reference")) as node:
        yield node
