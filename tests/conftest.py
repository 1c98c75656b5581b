"""What all tests need: plans are made up and kept in a folder of their own, so that nothing is measured."""

import os

import pytest
from plans import made_up

import multidraft as md
from multidraft.generation.defaults import SCHEME
from multidraft.planning import keeping
from multidraft.planning.making import Subject
from multidraft.zoo import load_pair


@pytest.fixture(autouse=True, scope="session")
def plans_are_made_up(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Also in processes that a test starts, for the embedded pair."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    keeping.make = made_up
    pair = load_pair()
    subject = Subject(pair.target, pair.draft, [], md.scheme(SCHEME), "deferred")
    file = keeping.place(subject.identity)
    file.parent.mkdir(parents=True)
    file.write_text(made_up(subject).as_json())
