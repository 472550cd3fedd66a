import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`(tests/\S+?\.py)::(\w+)`", (ROOT / "docs" / "behaviours.md").read_text(encoding="utf-8"))


def test_the_table_of_behaviours_names_tests() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_each_test_that_the_table_of_behaviours_names_is_there(file: str, name: str) -> None:
    source = (ROOT / file).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE)
