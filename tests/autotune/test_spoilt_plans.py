"""Plans that were spoilt, with a checksum that is right: they can be used, or are refused in one line."""

import json
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from plans import made_up
from spoiling import WRONG, loads_or_says_why, places, spoilt

from multidraft.autotune import plans
from multidraft.autotune.auto_policy import Auto
from multidraft.autotune.plans import Profile
from multidraft.decoding.policy import PromptReads

IDENTITY = {"target": {"digest": "1"}, "scheme": "anchored:lorenz"}


@pytest.fixture(autouse=True)
def no_hints(unchecked: None) -> None:
    """Type hints are not checked, as for a user."""


def content() -> dict[str, Any]:
    """What a plan says, but for its checksum; of one number of rows, and at one temperature."""
    fields = json.loads(made_up(IDENTITY).as_json())
    fields["acceptance"] = {"1.0": fields["acceptance"]["1.0"]}
    return {name: fields[name] for name in ("identity", "samples", "acceptance", "spent")}


def sealed(value: Any) -> str:
    """With a checksum."""
    return json.dumps({"multidraft plan": plans.FORMAT_VERSION, "checksum": plans.checksum(value)} | value)


def use(text: str | bytes) -> None:
    """Read a plan, and choose trees by it."""
    profile = Profile.from_json(text)
    for temperature in (0.0, 1.0):
        policy = Auto(profile, temperature)
        for rows in (1, 3, 64):
            policy.begin(rows, PromptReads(10.0, 1.0))
    assert Profile.from_json(profile.as_json()).as_json() == profile.as_json()


def works(place: tuple[Any, ...], wrong: str) -> bool:
    """Whether a plan that is spoilt in one place can be used."""
    text = sealed(spoilt(content(), place, WRONG[wrong]))
    return loads_or_says_why(lambda: use(text), f"{place} {wrong}")


CASES = [(place, wrong) for place in places(content()) for wrong in WRONG]


def test_some_spoilt_fields() -> None:
    use(sealed(content()))
    assert not all(works(*case) for case in CASES if crc32(repr(case).encode()) % 8 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_every_field_with_every_wrong_value(wrong: str) -> None:
    assert not all(works(*case) for case in CASES if case[1] == wrong)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("samples", "1", "0/0"), []),
        (("samples", "1", "0/0", 0), [0, 0, 0, 0, 0, 0]),  # in no time
        (("samples", "1", "0/0", 0), [1, 1, 1, 1, 1, 1]),  # with a draft
        (("samples", "1", "0/0", 0), [0, 0, 0, 0, 5, -9]),
        (("samples", "1", "x"), [[0, 0, 0, 0, 1, 1]]),
        (("samples", "-1"), {}),
        (("samples", "1" * 5000), {}),
        (("acceptance", "nan"), {}),
        (("acceptance", "1.0", "weight"), [1.0, 2.0]),
        (("acceptance", "1.0", "roots", 0), -1),
        (("spent", "1"), 1e300),
    ],
)
def test_what_no_run_can_have_measured_is_refused(place: tuple[Any, ...], value: Any) -> None:
    text = sealed(spoilt(content(), place, value))
    assert not loads_or_says_why(lambda: use(text), f"{place} {value}")


@pytest.mark.parametrize("text", [b"[" * 10**5, b"\xff", b"9" * 5000, '{"identity": ' * 990 + "1" + "}" * 990])
def test_texts_that_are_no_json_are_refused(text: str | bytes, tmp_path: Path) -> None:
    assert not loads_or_says_why(lambda: use(text), "a text")
