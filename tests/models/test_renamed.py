"""Names of version 0.2: the old ones of classes warn, and those of a user's own model end in one line of advice."""

import pytest

import multidraft as md
from multidraft.models import ensemble
from multidraft.models.table import TableModel, random_table


def test_old_classes_warn_and_work():
    with pytest.warns(DeprecationWarning, match="LookupThenModel"):
        assert ensemble.Copying is ensemble.LookupThenModel
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = ensemble.Nothing


def test_a_model_with_old_methods_is_told_the_new_ones():
    class Old(TableModel):
        def fresh(self, capacity: int) -> "Old":
            return Old(self.conditional, self.vocabulary)

    table = random_table(5, 2, seed=1)
    with pytest.raises(md.AdviceError, match=r"the draft model has methods .* rename fresh to new"):
        md.generate(TableModel(table, 5), Old(table, 5), [[0, 1]], max_new_tokens=2)
