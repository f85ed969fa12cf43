"""The tiny session, made once for the tests of this folder: it only reads."""

import pytest

from tests.analysis.viewer.tiny import client, make_session


@pytest.fixture(scope="session")
def session(tmp_path_factory):
    return make_session(tmp_path_factory.mktemp("identifiers") / "made")


@pytest.fixture
def browser(session):
    return client(session)
