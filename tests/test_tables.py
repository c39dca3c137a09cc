"""One table, three forms."""

import csv
import io

import pytest

from dear.tables import Table


@pytest.fixture
def table() -> Table:
    table = Table(["data", "images", "accuracy"])
    table.add("pets, all", 740, 88.25)
    table.add("x", None, 100.0)
    return table


def test_text_aligns_words_left_and_numbers_right(table: Table) -> None:
    assert table.text().splitlines() == [
        "data       images  accuracy",
        "---------  ------  --------",
        "pets, all     740      88.2",
        "x               -     100.0",
    ]


def test_markdown(table: Table) -> None:
    assert table.markdown().splitlines() == [
        "| data | images | accuracy |",
        "|---|---|---|",
        "| pets, all | 740 | 88.2 |",
        "| x | - | 100.0 |",
    ]


def test_csv_reads_back(table: Table) -> None:
    assert list(csv.reader(io.StringIO(table.csv()))) == [list(table.header), *table.cells()]


def test_a_column_with_a_word_in_it_is_not_a_column_of_numbers() -> None:
    table = Table(["value"])
    table.add(1)
    table.add("many")
    assert table.text().splitlines()[2] == "1"


def test_rows_of_another_length_are_refused(table: Table) -> None:
    with pytest.raises(ValueError, match="2 cells under 3 headings"):
        table.add("x", 1)


def test_an_empty_table_is_its_header() -> None:
    assert Table(["a", "bc"]).text() == "a  bc\n-  --"
