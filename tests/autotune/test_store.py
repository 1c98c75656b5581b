"""Profiles are kept whole or not at all, and what is no profile of this pair ends in one line."""

import json
import logging
from pathlib import Path

import pytest
from decoded import WANTED, always
from plans import made_up, profile, rates, seen

import multidraft as md
from multidraft.autotune import store
from multidraft.autotune.profile import Profile
from multidraft.autotune.store import Subject
from multidraft.errors import AdviceError

FRESH = store.fresh  # before any test makes profiles up


def subject(width: int = 3) -> Subject:
    target, draft = always(lambda _: WANTED), always(lambda _: WANTED)
    return Subject(target, draft, md.scheme("anchored:lorenz" if width == 3 else "iid:lorenz"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(store, "LOADED", {})
    monkeypatch.setattr(store, "fresh", Profile)
    store.cannot_keep.cache_clear()
    return tmp_path


def test_a_profile_comes_back_from_its_text() -> None:
    made = profile({"target": "one"}, spent=3.0)
    made.acceptance = {0.7: seen(rates(0.6))}
    text = made.as_json()
    again = Profile.from_json(text)
    assert again.as_json() == text
    assert again.rates(1.0).table == pytest.approx(made.rates(1.0).table)
    assert again.costs(2) == made.costs(2)


def test_what_is_kept_is_found_again() -> None:
    made = made_up(subject().identity)
    assert store.profile_for(subject()).samples == {}
    store.LOADED.clear()
    assert store.save(made)
    assert store.profile_for(subject()).samples == made.samples
    assert store.profile_for(subject()) is store.profile_for(subject())


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"multidraft plan": 7}', b'{"multidraft plan": 8, "checksum": "0"}', b"\xff\xfe"]
)
def test_a_damaged_profile_is_measured_again_with_a_note(content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    file = store.place(subject().identity)
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    with caplog.at_level(logging.WARNING, "multidraft"):
        assert store.profile_for(subject()).samples == {}
    assert "is damaged; measuring again" in caplog.text


def test_a_flipped_digit_is_noticed() -> None:
    found = json.loads(made_up(subject().identity).as_json())
    found["spent"]["1"] += 1
    with pytest.raises(AdviceError, match="checksum is wrong"):
        Profile.from_json(json.dumps(found))


def test_without_a_folder_to_keep_profiles_in_it_goes_on_and_says_so_once(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (own_cache / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(own_cache / "file"))
    made = store.profile_for(subject())
    with caplog.at_level(logging.WARNING, "multidraft"):
        assert not store.save(made)
        assert not store.save(made)
    assert caplog.text.count("cannot be kept") == 1


def test_a_plan_of_another_pair_or_machine_or_none_is_refused(tmp_path: Path) -> None:
    file, own = tmp_path / "plan.json", subject()
    file.write_text(made_up(own.identity | {"target": {"kind": "another"}, "cpu": "another"}).as_json())
    with pytest.raises(AdviceError, match="is of another target and cpu; make the right one with `multidraft tune"):
        store.profile_for(own, file)
    file.write_text(Profile(own.identity).as_json())
    with pytest.raises(AdviceError, match="has no costs; make the right one"):
        store.profile_for(own, file)
    file.write_text("nonsense")
    with pytest.raises(AdviceError, match="it is no plan"):
        store.profile_for(own, file)
    with pytest.raises(AdviceError, match="cannot read the plan"):
        store.profile_for(own, tmp_path / "none.json")


def test_a_plan_that_never_ends_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AdviceError, match="it is no file"):
        store.profile_for(subject(), Path("/dev/zero"))
    monkeypatch.setattr(store, "LARGEST", 10)
    (tmp_path / "large.json").write_text(" " * 11)
    with pytest.raises(AdviceError, match="too large for a plan"):
        store.profile_for(subject(), tmp_path / "large.json")


def test_a_profile_of_the_same_pair_that_is_shipped_lends_its_acceptance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs are the machine's, and are not lent."""
    monkeypatch.setattr(store, "shipped", lambda: [tmp_path / "one.json"])
    (tmp_path / "one.json").write_text(made_up(subject().identity | {"cpu": "another"}).as_json())
    new = FRESH(subject().identity)
    assert new.samples == {}
    assert new.rates(1.0).accepted(1) == pytest.approx(0.7, abs=0.01)
    assert FRESH(subject().identity | {"scheme": "another"}).acceptance == {}


def test_processes_that_share_work_share_a_profile() -> None:
    store.adopt(subject(), profile(subject().identity).as_json())
    assert store.profile_for(subject()).known == [1]


def test_a_profile_is_of_one_pair_and_scheme() -> None:
    assert store.place(subject().identity) != store.place(subject(4).identity)


def test_what_is_shipped_can_be_read_and_knows_three_temperatures() -> None:
    found = [Profile.from_json(entry.read_text()) for entry in store.shipped()]
    assert len(found) == 4
    assert all({*made.acceptance} == {0.0, 0.7, 1.0} and not made.samples for made in found)
